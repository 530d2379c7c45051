"""The check before a command changes slices: for others' slices it asks, or needs `--force`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from typer import Option

from tpukit.cli.toolkit import Toolkit
from tpukit.errors import Fix, NotAllowed
from tpukit.models import Slice
from tpukit.slices import lifetime, naming

Force = Annotated[bool, Option("--force", help="Also act on slices of other owners.")]


def confirm(
    toolkit: Toolkit,
    verb: str,
    slices: Sequence[Slice],
    *,
    force: bool,
    always: bool,
    flags: Sequence[str] = (),
) -> None:
    """Ask before a command does `verb` with others' slices, unless `force` is given.

    With `always`, ask about the user's own slices too. Slices without an owner label count as the
    user's own; tpukit did not make them.

    Raises:
        NotAllowed: a slice belongs to another owner, without `force`, and nobody can be asked.
        BadInput: nobody can be asked, or the answer is no.
    """
    others = [
        slice_
        for slice_ in slices
        if naming.owner(slice_) and not naming.is_owner(toolkit.cloud.owner, slice_.labels)
    ]
    if others and not force and not toolkit.questions.possible:
        yes = ["--yes"] if toolkit.flags.yes else []
        raise NotAllowed(
            f"slice {others[0].name} belongs to {naming.owner(others[0])}",
            reason=f"you are {toolkit.cloud.owner}",
            fix=Fix.command(
                "tpukit", verb, *[slice_.name for slice_ in slices], *flags, "--force", *yes
            ),
        )
    if slices and (always or (others and not force)):
        now, me, rates = toolkit.cloud.provider.now(), toolkit.cloud.owner, toolkit.cloud.rates
        width = max(len(slice_.name) for slice_ in slices)
        known = [(slice_.name, _known(slice_, me, now, rates)) for slice_ in slices]
        if len(known) == 1:
            toolkit.questions.confirm(f"{verb} {known[0][0]} ({known[0][1]})?")
            return
        details = [f"{name:<{width}}  {about}" for name, about in known]
        toolkit.questions.confirm(f"{verb} these {len(known)} slices?", details)


def _known(slice_: Slice, me: str, now: float, rates: Mapping[str, float]) -> str:
    """Return a slice's zone, owner, age and cost for a question."""
    owner = naming.owner(slice_)
    mine = naming.is_owner(me, slice_.labels)
    whose = "" if mine else f", of {owner}" if owner else ", not made by tpukit"
    made = slice_.created and f", made {lifetime.ago(slice_.created[:19], now)}"
    cost = lifetime.lifetime(slice_, now, rates).cost
    spent = "" if cost is None else f", cost {cost:.2f}"
    return f"{slice_.zone}{whose}{made}{spent}"

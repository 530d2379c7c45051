"""The check before a command changes slices: for others' slices it asks, or needs `--force`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

from typer import Option

from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import slice_views
from tpukit.clock import Deadline
from tpukit.errors import Fix, NotAllowed, TpukitError
from tpukit.models import Slice
from tpukit.slices import lifetime, naming
from tpukit.slices.find import matching

Force = Annotated[bool, Option("--force", help="Also act on slices of other owners.")]
_PATTERN = re.compile(r"(?=.*[*?[])[-a-z0-9*?!\[\]]+")


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
        if naming.owner(slice_) and not naming.is_owner(toolkit.owner, slice_.labels)
    ]
    if others and not force and not toolkit.can_ask:
        yes = ["--yes"] if toolkit.flags.yes else []
        raise NotAllowed(
            f"slice {others[0].name} belongs to {naming.owner(others[0])}",
            reason=f"you are {toolkit.owner}",
            fix=Fix.command(
                "tpukit", verb, *[slice_.name for slice_ in slices], *flags, "--force", *yes
            ),
        )
    if slices and (always or (others and not force)):
        now, me = toolkit.provider.now(), toolkit.owner
        number = f"{len(slices)} slices: " if len(slices) > 1 else ""
        asked = ", ".join(_shown(slice_, me, now) for slice_ in slices)
        toolkit.confirm(f"{verb} {number}{asked}?")


def _shown(slice_: Slice, me: str, now: float) -> str:
    """Return a slice's name, zone, owner and age for a question."""
    owner = naming.owner(slice_)
    mine = naming.is_owner(me, slice_.labels)
    whose = "" if mine else f", of {owner}" if owner else ", not made by tpukit"
    made = slice_.created and f", made {lifetime.ago(slice_.created[:19], now)}"
    return f"{slice_.name} ({slice_.zone}{whose}{made})"


def is_pattern(name: str) -> bool:
    """Return True if a name is a pattern with `*`, `?` or `[…]`."""
    return _PATTERN.fullmatch(name) is not None


def fitting(
    toolkit: Toolkit, patterns: Sequence[str], foreign: bool, deadline: Deadline
) -> tuple[Slice, ...]:
    """Return the user's slices, or all slices if `foreign`, with names that match a pattern.

    Raises `TpukitError` if a zone did not answer, so some matching slices may be unknown.
    """
    listed = toolkit.provider.within(deadline).list(toolkit.flags.zone or "-")
    if listed.unreachable:
        silent = ", ".join(listed.unreachable)
        fix = Fix(note="name the slices, or add --zone")
        what = "some matching slices may be unknown"
        raise TpukitError(what, why=f"no answer from {silent}", fix=fix)
    for line in slice_views.unread(listed.slices):
        toolkit.console.warn(line)
    owner = toolkit.owner
    slices = [
        slice_ for slice_ in listed.slices if foreign or naming.is_owner(owner, slice_.labels)
    ]
    selected = matching(slices, patterns)
    for slice_ in selected:
        toolkit.hints.forget(slice_.name)
    return selected

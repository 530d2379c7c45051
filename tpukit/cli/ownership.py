"""Which slices a command changes: another's only after a question, or with `--force`."""

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

Force = Annotated[bool, Option("--force", help="Also a slice of another owner.")]
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
    """Ask whether to `verb` these slices, naming the owner of each that is another's.

    One's own slices are asked about where `always` says so. A slice without an owner's label was
    not made by tpukit: nobody's.

    Raises:
        NotAllowed: one is another's, without `force`, and nobody is there to be asked.
        BadInput: nobody can be asked, or the answer is no.
    """
    others = [
        each
        for each in slices
        if naming.owner(each) and not naming.is_owner(toolkit.owner, each.labels)
    ]
    if others and not force and not toolkit.can_ask:
        yes = ["--yes"] if toolkit.flags.yes else []
        raise NotAllowed(
            f"slice {others[0].name} belongs to {naming.owner(others[0])}",
            reason=f"you are {toolkit.owner}",
            fix=Fix.command(
                "tpukit", verb, *[each.name for each in slices], *flags, "--force", *yes
            ),
        )
    if slices and (always or (others and not force)):
        now, me = toolkit.provider.now(), toolkit.owner
        number = f"{len(slices)} slices: " if len(slices) > 1 else ""
        asked = ", ".join(_shown(each, me, now) for each in slices)
        toolkit.confirm(f"{verb} {number}{asked}?")


def _shown(found: Slice, me: str, now: float) -> str:
    """Return a slice as a question names it: where it is, whose, and how old."""
    owner = naming.owner(found)
    mine = naming.is_owner(me, found.labels)
    whose = "" if mine else f", of {owner}" if owner else ", not made by tpukit"
    made = found.created and f", made {lifetime.ago(found.created[:19], now)}"
    return f"{found.name} ({found.zone}{whose}{made})"


def is_pattern(name: str) -> bool:
    """Return True if a name is a pattern of names, as a shell has them."""
    return _PATTERN.fullmatch(name) is not None


def fitting(
    toolkit: Toolkit, patterns: Sequence[str], foreign: bool, deadline: Deadline
) -> tuple[Slice, ...]:
    """Return the slices of yours, or all if `foreign`, whose names fit one of the patterns.

    Raises `TpukitError` if a zone did not answer, so that not every one is known.
    """
    listed = toolkit.provider.within(deadline).list(toolkit.flags.zone or "-")
    if listed.unreachable:
        silent = ", ".join(listed.unreachable)
        fix = Fix(note="name the slices, or add --zone")
        raise TpukitError("which slices fit is not known", why=f"no answer from {silent}", fix=fix)
    for line in slice_views.unread(listed.slices):
        toolkit.console.warn(line)
    owner = toolkit.owner
    slices = [each for each in listed.slices if foreign or naming.is_owner(owner, each.labels)]
    selected = matching(slices, patterns)
    for each in selected:
        toolkit.hints.forget(each.name)
    return selected

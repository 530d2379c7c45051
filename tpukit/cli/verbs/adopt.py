"""`tpukit adopt`: take over a slice that another tool or another owner has made."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from tpukit.access import rule_opening, ssh_rule
from tpukit.cli import confirmation
from tpukit.cli import parameters as flag
from tpukit.cli.dry_run import DryRun, rehearse
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import slice_views
from tpukit.console import View
from tpukit.errors import Fix
from tpukit.models import Slice
from tpukit.slices import lifetime, naming
from tpukit.slices.claim import in_use
from tpukit.slices.losses import loss
from tpukit.slices.update import Edits, update


@flag.connecting
def adopt(
    toolkit: Toolkit,
    name: flag.Name,
    ttl: flag.Ttl = "",
    purpose: flag.Purpose = "",
    source_ranges: flag.SourceRanges = None,
    no_firewall: flag.NoFirewall = False,
    force: confirmation.Force = False,
    timeout: flag.Timeout = "10m",
    dry_run: DryRun = False,
) -> View:
    """Take over a slice that another tool or another owner has made.

    The slice gets the labels of tpukit, with you as its owner, the end and the purpose that you
    name, and a firewall rule for your address. Its first connection adds your SSH key. tpukit shows
    what changes and asks first. The name of a multislice stands for all its slices. The API cannot
    change a request that still waits in the queue, so adopt its slices when they exist.

    Examples:
      tpukit adopt demo --ttl 8h
      tpukit adopt demo --dry-run
    """
    ranges = ssh_rule.check_ranges(source_ranges or ())
    seconds = flag.life(ttl, "--ttl") if ttl else None
    deadline = toolkit.deadline(flag.seconds(timeout))
    slices = toolkit.slices.find_named(name, deadline)
    now = toolkit.cloud.provider.now()
    given = lifetime.labels(now, seconds, purpose)
    wanted = {slice_.name: _labels(toolkit, slice_, given) for slice_ in slices}
    for slice_ in slices:
        if slice_.lost:
            raise loss(slice_)
        for key, value in wanted[slice_.name].items():
            before = slice_.labels.get(key)
            toolkit.console.say(
                f"{slice_.name}: label {key} becomes {value}"
                + (f", was {before}" if before else "")
            )

    def act(by: Toolkit) -> list[Slice]:
        limit, context = by.deadline(deadline.remaining()), by.reach.context(ranges)
        adopted = []
        for slice_ in slices:
            edits = Edits(labels={**wanted[slice_.name], **in_use(slice_)}, ours=True)
            say = by.display.say_state(slice_.name)
            done = update(by.cloud.provider, slice_, edits, deadline=limit, on_state=say).slice
            if not no_firewall:
                done, opening = rule_opening.open_for(context, done)
                by.console.say(f"rule {opening.rule.name}: {opening.summary}")
            adopted.append(done)
        return adopted

    if dry_run:
        return rehearse(toolkit, act)
    pairs = [("--ttl", ttl), ("--purpose", purpose), *(("--source-range", one) for one in ranges)]
    flags = [word for pair in pairs if pair[1] for word in pair]
    flags += ["--no-firewall"] if no_firewall else []
    confirmation.confirm(toolkit, "adopt", slices, force=force, always=True, flags=flags)
    adopted = act(toolkit)
    for line in slice_views.unguarded(adopted):
        toolkit.console.warn(line)
    place = (name, *(("--zone", adopted[0].zone) if len(adopted) == 1 else ()))
    after = (Fix.command("tpukit", "provision", *place),)
    if len(adopted) == 1:
        return slice_views.one_slice(adopted[0], next=after)
    return slice_views.several_slices([(slice_, {}) for slice_ in adopted], after)


def _labels(toolkit: Toolkit, slice_: Slice, given: Mapping[str, str]) -> Mapping[str, str]:
    """Return the labels that the slice lacks; it keeps its nonce and its time of creation."""
    has = slice_.labels
    nonce = has.get(naming.NONCE) or secrets.token_hex(6)
    wanted = {**given, **naming.owned(toolkit.cloud.owner, nonce)}
    if lifetime.CREATED in has:
        del wanted[lifetime.CREATED]
    return {key: value for key, value in wanted.items() if has.get(key) != value}

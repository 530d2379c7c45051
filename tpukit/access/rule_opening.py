"""Request a slice's firewall rule, during its create or for an existing slice."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from tpukit.access import packet_filter, ssh_rule
from tpukit.access.context import Context
from tpukit.access.ssh_rule import SSH, rule_name
from tpukit.clock import Deadline, polls
from tpukit.errors import Fix, NameTaken, NotAllowed, NotEnabled, TpukitError
from tpukit.google.failures import UNREADABLE
from tpukit.google.provider import FirewallProvider, Wait
from tpukit.models import FirewallRule, Slice
from tpukit.paths import keep_json, recall_json
from tpukit.slices.update import Edits, update

#: Seconds to wait for a slice's new tag; the update takes 10 to 20.
_TAG_SECONDS = 120.0
#: Seconds until a rule that another call makes is shown.
_SHOWN_SECONDS = 30.0


@dataclass(frozen=True)
class Opening:
    """A requested rule; `wait` returns when it exists.

    `replaced` has our older address, which the rule no longer admits. `rules` are the rules before
    it; `exposing` are those that admit the whole world. `unread` is True if the rule existed and we
    may not read it.
    """

    rule: FirewallRule
    changed: bool = False
    replaced: tuple[str, ...] = ()
    wait: Wait = lambda: None
    rules: Sequence[FirewallRule] = ()
    exposing: Sequence[FirewallRule] = ()
    unread: bool = False

    @property
    def summary(self) -> str:
        """The sources that the rule admits, and those that it no longer admits."""
        ranges = ", ".join(self.rule.source_ranges)
        if self.unread:
            check = f"check that it admits {SSH} from {ranges} to tag {self.rule.target_tags[0]}"
            return f"it exists, but you may not read it; {check}"
        older = ""
        if self.replaced:
            older = f"; {', '.join(self.replaced)}, your earlier address, was removed"
        others = ", ".join(rule.name for rule in self.exposing)
        why = f"; it lets you in when {others}, open to everybody, is closed" if others else ""
        return f"{'opened' if self.changed else 'already open'}: {SSH} from {ranges}{older}{why}"

    def note_left(self, error: TpukitError) -> None:
        """Add to an error that the slice's rule remains."""
        remains = f"firewall rule {self.rule.name}, which costs nothing"
        if ssh_rule.is_ours(self.rule) and remains not in error.exists:
            error.exists = (*error.exists, remains)
            if not (error.otherwise or (error.fix and error.fix.arguments)):
                error.otherwise = Fix.command("tpukit", "firewall", "remove", self.rule.name)


def ask(
    context: Context,
    slice_: Slice,
    source_ranges: Sequence[str],
    rules: Sequence[FirewallRule] | None = None,
) -> Opening:
    """Request a rule that admits these sources to the slice's port 22.

    The rule keeps its ranges, except an older address of this machine that tpukit found out. If
    another rule admits the sources, no rule is made, unless that rule admits the whole world.
    `rules` are the rules of the slice's network; they are read if not given.

    Raises:
        NameTaken: somebody changed the rule so that it admits nobody to this slice.
        NotAllowed: you may not make rules, and no rule admits these sources.
    """
    firewall = context.firewall.of(slice_.network_project)
    rules = _listed(firewall) if rules is None else rules
    wanted = _rule(slice_, rule_name(slice_), "SSH to", SSH, source_ranges)
    exposing = packet_filter.open_to_world(rules, slice_)
    admitting = _admitting(rules, slice_, source_ranges)
    if admitting and admitting not in exposing and not _named(rules, wanted.name):
        return Opening(admitting, rules=rules, exposing=exposing)
    found_out = not (context.source_ranges or context.proxied)
    # If the file is lost, the rule keeps an older address.
    admitted = str(recall_json(context.own_addresses).get(wanted.name, ""))
    older = admitted if found_out else ""
    try:
        opening = _ask_for(context, slice_, wanted, rules, older)
    except NotAllowed as error:
        if isinstance(error, NotEnabled):
            raise
        if admitting:
            return Opening(admitting, rules=rules)
        raise _refused(error, wanted, slice_) from error
    if found_out and older != wanted.source_ranges[0]:
        known = recall_json(context.own_addresses)
        keep_json(context.own_addresses, {**known, wanted.name: wanted.source_ranges[0]})
    return replace(opening, rules=rules, exposing=exposing)


def open_for(context: Context, slice_: Slice, world: bool = False) -> tuple[Slice, Opening]:
    """Give the slice the tag of its rule, and wait until the rule admits us.

    Raises:
        SecurityRefusal: the ranges are the whole world, and `world` does not allow that.
        SliceLost, NameTaken, BadInput, TpukitError: the errors of `Context.check_reachable` and
            `ask`.
    """
    context.check_reachable(slice_)
    slice_ = _tied(context, slice_)
    opening = ask(context, slice_, sources(context, slice_.workers[0].address, world))
    opening.wait()
    return slice_, opening


def finish(context: Context, slice_: Slice, opening: Opening) -> tuple[Slice, Opening]:
    """Wait for a rule that was requested before its slice existed, and for the slice's tag.

    If the workers see us at another address than expected, admit that address too.
    """
    opening.wait()
    if opening.rule.name != rule_name(slice_) or not slice_.workers:
        return slice_, opening
    slice_ = _tied(context, slice_)
    ranges = sources(context, slice_.workers[0].address)
    if set(ranges) <= set(opening.rule.source_ranges):
        return slice_, opening
    again = ask(context, slice_, ranges)
    again.wait()
    return slice_, replace(again, changed=opening.changed or again.changed)


def sources(context: Context, worker_address: str, world: bool = False) -> tuple[str, ...]:
    """Return the ranges to admit: the given ones, or else our address as seen by the worker.

    Raises:
        SecurityRefusal: they are the whole world, and `world` does not allow that.
        TpukitError: our address cannot be found out.
    """
    given = context.source_ranges or (context.source_address(worker_address),)
    return ssh_rule.check_ranges(given, world=world)


def _tied(context: Context, slice_: Slice) -> Slice:
    """Add the tag of its rule to the slice if it is missing; return the slice.

    Raises the errors of `update`.
    """
    edits = Edits(tags=(rule_name(slice_),), ours=True)
    limit = Deadline.after(context.clock, _TAG_SECONDS)
    return update(context.provider, slice_, edits, deadline=limit).slice


def open_ports(
    context: Context, slice_: Slice, purpose: str, allow: str, ranges: Sequence[str]
) -> bool:
    """Open ports (`udp:60000-61000`) of a slice to ranges; return True if a rule changed.

    Raises:
        NameTaken: somebody has changed that rule so that it admits nobody.
        TpukitError: you may not make rules, or the call failed.
    """
    firewall = context.firewall.of(slice_.network_project)
    slice_ = _tied(context, slice_)
    wanted = _rule(slice_, ssh_rule.purpose_name(slice_, purpose), f"{purpose} of", allow, ranges)
    opening = _ask_for(context, slice_, wanted, firewall.list())
    opening.wait()
    return opening.changed


def close_ports(
    context: Context, slice_: Slice, purpose: str, ranges: Sequence[str] | None = None
) -> bool:
    """Close the ports to these ranges, or to all; return True if a rule changed."""
    firewall = context.firewall.of(slice_.network_project)
    present = _named(firewall.list(), ssh_rule.purpose_name(slice_, purpose))
    if present is None:
        return False
    gone = set(present.source_ranges if ranges is None else ranges)
    left = tuple(source for source in present.source_ranges if source not in gone)
    if left:
        firewall.replace_source_ranges(present.name, left)()
        return left != present.source_ranges
    return ssh_rule.remove(firewall, present.name)


def _rule(
    slice_: Slice, name: str, purpose: str, allow: str, ranges: Sequence[str]
) -> FirewallRule:
    return FirewallRule(
        name=name,
        network=slice_.network or "default",
        source_ranges=tuple(ranges),
        target_tags=(rule_name(slice_),),
        allowed=(allow,),
        description=f"{purpose} projects/{slice_.project}/{ssh_rule.path_of(slice_)}, "
        "made by tpukit and removed with the slice",
    )


def _ask_for(
    context: Context,
    slice_: Slice,
    wanted: FirewallRule,
    rules: Sequence[FirewallRule],
    older: str = "",
) -> Opening:
    """Request a rule of a slice; its existing ranges stay, except the `older` one.

    `rules` are the existing rules. Raises `NameTaken` if somebody has changed the rule so that it
    admits nobody, or if Google says that it exists but does not show it.
    """
    firewall = context.firewall.of(slice_.network_project)
    present = _named(rules, wanted.name)
    if present is None:
        try:
            return Opening(wanted, True, wait=_inserted(firewall, wanted))
        except NameTaken as error:  # another call made it, or the answer to ours was lost
            present = _shown(firewall, wanted, Deadline.after(context.clock, _SHOWN_SECONDS))
            if present is None:
                project = ("--project", slice_.network_project or slice_.project)
                describe = ("gcloud", "compute", "firewall-rules", "describe", wanted.name)
                error.why = "it is not shown as an ingress rule, so it may admit nobody"
                error.fix = Fix.command(*describe, *project)
                raise
    _check_ours(present, wanted)
    outdated = {older} & set(present.source_ranges) - set(wanted.source_ranges)
    kept = [source for source in present.source_ranges if source not in outdated]
    new = [source for source in wanted.source_ranges if source not in kept]
    if not new and not outdated:
        return Opening(present, unread=present is wanted)
    now = replace(present, source_ranges=(*kept, *new))
    wait = firewall.replace_source_ranges(present.name, now.source_ranges)
    return Opening(now, True, tuple(outdated), wait)


def _inserted(firewall: FirewallProvider, wanted: FirewallRule) -> Wait:
    """Request a rule, again if the answer is unreadable; return its wait.

    Raises `NameTaken` if the rule exists, perhaps since the first request.
    """
    try:
        return firewall.insert(wanted)
    except TpukitError as error:
        if not error.reason.startswith(UNREADABLE):
            raise
        return firewall.insert(wanted)


def _named(rules: Sequence[FirewallRule], name: str) -> FirewallRule | None:
    """Return the rule of that name, or None."""
    return next((rule for rule in rules if rule.name == name), None)


def _shown(
    firewall: FirewallProvider, wanted: FirewallRule, deadline: Deadline
) -> FirewallRule | None:
    """Return the existing rule when the API shows it, or None; if we may not read it, `wanted`."""
    with suppress(NotAllowed):
        rules = (firewall.get(wanted.name) for _ in polls(deadline))
        return next(filter(None, rules), None)
    return wanted


def _admitting(
    rules: Sequence[FirewallRule], slice_: Slice, source_ranges: Sequence[str]
) -> FirewallRule | None:
    """Return the rule that admits the first source if rules admit all sources, else None."""
    deciding = [packet_filter.deciding(rules, slice_, source) for source in source_ranges]
    return deciding[0] if all(rule and rule.allowed for rule in deciding) else None


def _listed(firewall: FirewallProvider) -> Sequence[FirewallRule]:
    """Return the rules; none if we may not read them, because we may still make one."""
    try:
        return firewall.list()
    except NotAllowed:
        return ()


def _check_ours(present: FirewallRule, wanted: FirewallRule) -> None:
    """Raise `NameTaken` if the existing rule would admit no range to this slice."""
    (port,) = wanted.allowed
    opens = port in present.allowed or (port == SSH and packet_filter.opens_ssh(present.allowed))
    closed = {
        "it is disabled": present.disabled,
        f"it belongs to network {present.network}": present.network != wanted.network,
        "it lacks the slice's tag": not set(wanted.target_tags) <= set(present.target_tags),
        f"it does not open {port}": not opens,
    }
    reasons = [reason for reason, holds in closed.items() if holds]
    if reasons:
        raise NameTaken(
            f"firewall rule {present.name} exists and admits nobody",
            why="; ".join(reasons),
            fix=Fix.command("tpukit", "firewall", "remove", present.name),
        )


def _refused(error: NotAllowed, wanted: FirewallRule, slice_: Slice) -> NotAllowed:
    """Return the error if you may not make rules, with the command for an administrator."""
    project = slice_.network_project or slice_.project
    return NotAllowed(
        f"you may not make the firewall rule that SSH to slice {slice_.name} needs",
        reason=error.reason,
        why=error.what,
        fix=Fix.command(
            *("gcloud", "compute", "firewall-rules", "create", wanted.name, "--project", project),
            *("--network", wanted.network, "--allow", SSH, "--target-tags", wanted.name),
            *("--source-ranges", ",".join(wanted.source_ranges)),
            note=f"for somebody with roles/compute.securityAdmin in project {project}",
        ),
        otherwise=Fix(note="add --no-firewall if the network already lets you in"),
    )

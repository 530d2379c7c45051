"""A slice's rule, asked for: beside the create, or later for a slice that is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tpukit.access import packet_filter
from tpukit.access.context import Context
from tpukit.access.ssh_rule import (
    SSH,
    check_ranges,
    is_ours,
    purpose_name,
    remove,
    rule_name,
)
from tpukit.clock import Deadline
from tpukit.cloud.provider import FirewallProvider, Wait
from tpukit.errors import (
    Fix,
    NameTaken,
    NotAllowed,
    NotEnabled,
    TpukitError,
)
from tpukit.models import FirewallRule, Slice
from tpukit.paths import keep_json, recall_json
from tpukit.slices.update import Edits, update

#: Seconds for a slice to have a new tag: its update takes 10 to 20.
_TAG_SECONDS = 120.0


@dataclass(frozen=True)
class Opening:
    """A rule that was asked for; `wait` returns once it is there.

    `replaced` is what it no longer admits: an older address of ours. `rules` are those that were
    there before, and those of them `exposing` that let the whole world in.
    """

    rule: FirewallRule
    changed: bool = False
    replaced: tuple[str, ...] = ()
    wait: Wait = lambda: None
    rules: Sequence[FirewallRule] = ()
    exposing: Sequence[FirewallRule] = ()

    @property
    def summary(self) -> str:
        """What the rule admits, and what no longer."""
        ranges = ", ".join(self.rule.source_ranges)
        older = (
            f"; {', '.join(self.replaced)}, your address before, is out" if self.replaced else ""
        )
        others = ", ".join(rule.name for rule in self.exposing)
        why = f"; it lets you in when {others}, open to everybody, is closed" if others else ""
        return f"{'opened' if self.changed else 'already open'}: {SSH} from {ranges}{older}{why}"

    def note_left(self, error: TpukitError) -> None:
        """Say in an error that the slice's rule is left."""
        remains = f"firewall rule {self.rule.name}, which costs nothing"
        if is_ours(self.rule) and remains not in error.exists:
            error.exists = (*error.exists, remains)
            if not (error.otherwise or (error.fix and error.fix.arguments)):
                error.otherwise = Fix.command("tpukit", "firewall", "remove", self.rule.name)


def ask(
    context: Context,
    found: Slice,
    source_ranges: Sequence[str],
    rules: Sequence[FirewallRule] | None = None,
) -> Opening:
    """Ask for a rule that admits these sources to the slice's port 22; a refusal is raised here.

    Ranges that the rule has already stay, except an older address of this machine that we found
    out. If a rule of others admits the sources, none is made; one that admits the whole world does
    not count. `rules` are those of the slice's network, read here unless given.

    Raises:
        NameTaken: somebody changed the rule so that it admits nobody to this slice.
        NotAllowed: rules may not be made, and none admits these sources.
    """
    firewall = context.firewall.of(found.network_project)
    rules = _listed(firewall) if rules is None else rules
    wanted = _rule(found, rule_name(found), "SSH to", SSH, source_ranges)
    exposing = packet_filter.open_to_world(rules, found)
    admitting = _admitting(rules, found, source_ranges)
    if admitting and admitting not in exposing and not _named(rules, wanted.name):
        return Opening(admitting, rules=rules, exposing=exposing)
    found_out = not (context.source_ranges or context.proxied)
    # With the file lost, the rule keeps an older address.
    admitted = str(recall_json(context.own_addresses).get(wanted.name, ""))
    older = admitted if found_out else ""
    try:
        opening = _ask_for(firewall, wanted, rules, older)
    except NotAllowed as error:
        if isinstance(error, NotEnabled):
            raise
        if admitting:
            return Opening(admitting, rules=rules)
        raise _refused(error, wanted, found) from error
    if found_out and older != wanted.source_ranges[0]:
        known = recall_json(context.own_addresses)
        keep_json(context.own_addresses, {**known, wanted.name: wanted.source_ranges[0]})
    return replace(opening, rules=rules, exposing=exposing)


def open_for(context: Context, found: Slice, world: bool = False) -> tuple[Slice, Opening]:
    """Tie the slice to its rule by its tag and let the rule admit us, and wait until it does.

    Raises:
        SecurityRefusal: the ranges are the whole world, and `world` does not allow that.
        SliceLost, NameTaken, BadInput, TpukitError: as `Context.check_reachable` and `ask` raise.
    """
    context.check_reachable(found)
    found = _tied(context, found)
    opening = ask(context, found, sources(context, found.workers[0].address, world))
    opening.wait()
    return found, opening


def finish(context: Context, found: Slice, opening: Opening) -> tuple[Slice, Opening]:
    """Wait for a rule that was asked for before its slice was there, and for the slice's tag.

    Where the workers see us at another address than was thought, that one is admitted too.
    """
    opening.wait()
    if opening.rule.name != rule_name(found) or not found.workers:
        return found, opening
    found = _tied(context, found)
    ranges = sources(context, found.workers[0].address)
    if set(ranges) <= set(opening.rule.source_ranges):
        return found, opening
    again = ask(context, found, ranges)
    again.wait()
    return found, replace(again, changed=opening.changed or again.changed)


def sources(context: Context, worker_address: str, world: bool = False) -> tuple[str, ...]:
    """Return the ranges to admit: those given, else our address as such a worker sees it.

    Raises:
        SecurityRefusal: they are the whole world, and `world` does not allow that.
        TpukitError: our address cannot be found out.
    """
    given = context.source_ranges or (context.source_address(worker_address),)
    return check_ranges(given, world=world)


def _tied(context: Context, found: Slice) -> Slice:
    """Return the slice with the tag of its rule, which is added if it lacks it.

    Raises as `update`.
    """
    edits = Edits(tags=(rule_name(found),), ours=True)
    limit = Deadline.after(context.clock, _TAG_SECONDS)
    return update(context.provider, found, edits, deadline=limit).slice


def open_ports(
    context: Context, found: Slice, purpose: str, allow: str, ranges: Sequence[str]
) -> bool:
    """Let ranges reach ports (`udp:60000-61000`) of a slice too; return True if that is new.

    Raises:
        NameTaken: somebody has made that rule into another one.
        TpukitError: rules may not be made, or the call failed.
    """
    firewall = context.firewall.of(found.network_project)
    found = _tied(context, found)
    wanted = _rule(found, purpose_name(found, purpose), f"{purpose} of", allow, ranges)
    opening = _ask_for(firewall, wanted, firewall.list())
    opening.wait()
    return opening.changed


def close_ports(
    context: Context, found: Slice, purpose: str, ranges: Sequence[str] | None = None
) -> bool:
    """Let these ranges, or everybody, reach the ports no longer; return True if they could."""
    firewall = context.firewall.of(found.network_project)
    present = _named(firewall.list(), purpose_name(found, purpose))
    if present is None:
        return False
    gone = set(present.source_ranges if ranges is None else ranges)
    left = tuple(each for each in present.source_ranges if each not in gone)
    if left:
        firewall.replace_source_ranges(present.name, left)()
        return left != present.source_ranges
    return remove(firewall, present.name)


def _rule(found: Slice, name: str, purpose: str, allow: str, ranges: Sequence[str]) -> FirewallRule:
    return FirewallRule(
        name=name,
        network=found.network or "default",
        source_ranges=tuple(ranges),
        target_tags=(rule_name(found),),
        allowed=(allow,),
        description=f"{purpose} projects/{found.project}/locations/{found.zone}/nodes/"
        f"{found.name}, made by tpukit and removed with the slice",
    )


def _ask_for(
    firewall: FirewallProvider, wanted: FirewallRule, rules: Sequence[FirewallRule], older: str = ""
) -> Opening:
    """Ask for a rule of a slice's; ranges that it has already stay, except the `older` one.

    `rules` are those that are there. Raises `NameTaken` if somebody has made it into another one.
    """
    present = _named(rules, wanted.name)
    if present is None:
        try:
            return Opening(wanted, True, wait=firewall.insert(wanted))
        except NameTaken:  # made meanwhile, or by a call whose answer was lost
            present = _named(_listed(firewall), wanted.name) or wanted
    _check_ours(present, wanted)
    outdated = {older} & set(present.source_ranges) - set(wanted.source_ranges)
    kept = [each for each in present.source_ranges if each not in outdated]
    new = [each for each in wanted.source_ranges if each not in kept]
    if not new and not outdated:
        return Opening(present)
    now = replace(present, source_ranges=(*kept, *new))
    wait = firewall.replace_source_ranges(present.name, now.source_ranges)
    return Opening(now, True, tuple(outdated), wait)


def _named(rules: Sequence[FirewallRule], name: str) -> FirewallRule | None:
    """Return the rule of that name, if it is among them."""
    return next((rule for rule in rules if rule.name == name), None)


def _admitting(
    rules: Sequence[FirewallRule], found: Slice, source_ranges: Sequence[str]
) -> FirewallRule | None:
    """Return a rule that lets sources in, the first of several; None where one is kept out."""
    deciding = [packet_filter.deciding(rules, found, each) for each in source_ranges]
    return deciding[0] if all(each and each.allowed for each in deciding) else None


def _listed(firewall: FirewallProvider) -> Sequence[FirewallRule]:
    """Return the rules, none where they may not be read: the call that changes one decides."""
    try:
        return firewall.list()
    except NotAllowed:
        return ()


def _check_ours(present: FirewallRule, wanted: FirewallRule) -> None:
    """Raise if a rule of our name would not admit anybody, however many ranges it had."""
    (port,) = wanted.allowed
    opens = port in present.allowed or (port == SSH and packet_filter.opens_ssh(present.allowed))
    closed = {
        "it is disabled": present.disabled,
        f"it is of network {present.network}": present.network != wanted.network,
        "it has not the slice's tag": not set(wanted.target_tags) <= set(present.target_tags),
        f"it does not open {port}": not opens,
    }
    reasons = [reason for reason, holds in closed.items() if holds]
    if reasons:
        raise NameTaken(
            f"firewall rule {present.name} exists and admits nobody",
            why="; ".join(reasons),
            fix=Fix.command("tpukit", "firewall", "remove", present.name),
        )


def _refused(error: NotAllowed, wanted: FirewallRule, found: Slice) -> NotAllowed:
    """Return the error for who may not make rules, with the command for somebody who may."""
    project = found.network_project or found.project
    return NotAllowed(
        f"you may not make the firewall rule that SSH to slice {found.name} needs",
        reason=error.reason,
        why=error.what,
        fix=Fix.command(
            *("gcloud", "compute", "firewall-rules", "create", wanted.name, "--project", project),
            *("--network", wanted.network, "--allow", SSH, "--target-tags", wanted.name),
            *("--source-ranges", ",".join(wanted.source_ranges)),
            note=f"for somebody with roles/compute.securityAdmin in project {project}",
        ),
        otherwise=Fix(note="add --no-firewall where the network lets you in already"),
    )

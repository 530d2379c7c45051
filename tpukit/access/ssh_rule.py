"""The one opening that SSH needs: tcp:22, from the caller's address, to the slice's own tag."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress

from tpukit.access import packet_filter
from tpukit.cloud.provider import FirewallProvider
from tpukit.errors import BadInput, Fix, NotFound, SecurityRefusal
from tpukit.models import FirewallRule, Slice

SSH = "tcp:22"
#: The names of our rules start so.
PREFIX = "tpukit-"
_DIGITS = 6  #: of the digest at the end
_TAG = re.compile(rf"({PREFIX}.+)-[0-9a-f]{{{_DIGITS}}}")


def tag(project: str, zone: str, name: str) -> str:
    """Return the network tag of a slice, which is also the name of its firewall rule.

    Tags and rule names are RFC 1035 labels of at most 63 characters; the digest keeps slices of the
    same name in two zones apart.
    """
    digest = hashlib.sha256(f"{project}/{zone}/{name}".encode()).hexdigest()[:_DIGITS]
    return f"{_stem(name)}-{digest}"


def left_over(
    rules: Iterable[FirewallRule], slices: Iterable[Slice], project: str
) -> tuple[FirewallRule, ...]:
    """Return our rules whose slice is gone; `slices` are all that the project has.

    The host project of a Shared VPC also has rules of slices that live in other projects.
    """
    living = {rule_name(each) for each in slices}
    ours = [each for each in rules if is_ours(each) and not _of_another(each, project)]
    return tuple(each for each in ours if _made_for(each) not in living)


def is_ours(rule: FirewallRule) -> bool:
    """Tell whether a rule has a name as we give them."""
    return _TAG.fullmatch(rule.name) is not None


def is_for(rule: FirewallRule, name: str) -> bool:
    """Tell whether a rule is that of a slice so called, in whichever zone."""
    match = _TAG.fullmatch(rule.name)
    return bool(match and match[1] == _stem(name))


def check_ranges(ranges: Sequence[str], *, world: bool = False) -> tuple[str, ...]:
    """Return IPv4 or IPv6 ranges in CIDR form.

    Raises:
        BadInput: one of them is not an address or a range.
        SecurityRefusal: together they are the whole world, and `world` does not allow that.
    """
    checked = tuple(str(packet_filter.parse_range(text)) for text in ranges)
    if not world and packet_filter.is_world(checked):
        raise SecurityRefusal(
            "refusing to open port 22 to the whole world",
            why="CIS Google Cloud benchmark 3.6: SSH must not be reachable from every address",
            fix=Fix(
                note="leave --source-range out: your own address, or give one with --allow-world"
            ),
        )
    return checked


def remove(provider: FirewallProvider, name: str) -> bool:
    """Remove a rule of ours; return whether there was one.

    Raises `BadInput` where the name is not one that tpukit gives to its rules.
    """
    if not name.startswith(PREFIX):
        raise BadInput(f"{name} is not a rule of tpukit's")
    if all(rule.name != name for rule in provider.list()):
        return False
    try:
        provider.delete(name)
    except NotFound:
        return False
    return True


def missing(provider: FirewallProvider, found: Slice, source: str) -> str:
    """Return which rule SSH from `source` to the slice lacks, or "" where one admits it."""
    deciding = packet_filter.deciding(provider.list(), found, source)
    if deciding and deciding.allowed:
        return ""
    network = found.network or "default"
    if deciding:
        return f"firewall rule {deciding.name} of network {network} denies {SSH} from {source}"
    tags = ", ".join(found.tags) or "(the slice has none)"
    return f"no firewall rule of network {network} admits {SSH} from {source} to the tags {tags}"


def close_command(rule: FirewallRule, project: str) -> Fix:
    """Return the command that closes a rule; one that others made is only disabled."""
    if is_ours(rule):
        return Fix.command("tpukit", "firewall", "remove", rule.name)
    update = ("gcloud", "compute", "firewall-rules", "update", rule.name, "--disabled")
    return Fix.command(*update, "--project", project, note="--no-disabled opens it again")


def rule_name(found: Slice) -> str:
    """Return the name of a slice's rule, which is also its tag."""
    return tag(found.project, found.zone, found.name)


def purpose_name(found: Slice, purpose: str) -> str:
    """Return the name of a slice's rule for something else than SSH, with the same digest."""
    digest = _digest(rule_name(found))
    stem = _stem(found.name)[: len(PREFIX) + 48 - len(purpose)].rstrip("-")
    return f"{stem}-{purpose}-{digest}"


def remove_all(provider: FirewallProvider, own: str) -> None:
    """Remove the rules that were made for the slice with this tag, for SSH and other purposes."""
    for rule in provider.list():
        if is_ours(rule) and _made_for(rule) == own:
            with suppress(NotFound):
                provider.delete(rule.name)


def _made_for(rule: FirewallRule) -> str:
    """Return the tag of the slice that a rule of ours was made for."""
    own = rule.target_tags[0] if len(rule.target_tags) == 1 else ""
    return own if _digest(own) == _digest(rule.name) else rule.name


def _digest(name: str) -> str:
    return name[-_DIGITS:]


def _of_another(rule: FirewallRule, project: str) -> bool:
    owner = re.match(r"[A-Za-z-]+ (?:to|of) projects/([^/]+)/", rule.description)
    return bool(owner and owner[1] != project)


def _stem(name: str) -> str:
    return f"{PREFIX}{name[:49].rstrip('-')}"

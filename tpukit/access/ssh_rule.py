"""The firewall rule of a slice: tcp:22 from the caller's address to the slice's tag."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress

from tpukit.access import packet_filter
from tpukit.errors import (
    BadInput,
    Fix,
    NotAllowed,
    NotEnabled,
    NotFound,
    SecurityRefusal,
    TpukitError,
)
from tpukit.google.provider import FirewallProvider, SliceProvider
from tpukit.models import FirewallRule, Slice

SSH = "tcp:22"
#: The prefix of our rules' names.
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


def path_of(slice_: Slice) -> str:
    """Return the path of a slice below its project, which the description of its rule has."""
    kind = ("zones", "instances") if slice_.api == "compute" else ("locations", "nodes")
    return f"{kind[0]}/{slice_.zone}/{kind[1]}/{slice_.name}"


def left_over(
    rules: Iterable[FirewallRule], slices: Iterable[Slice], project: str, apis: Sequence[str]
) -> tuple[FirewallRule, ...]:
    """Return our rules without a slice; `slices` are all slices of the project in these APIs.

    Rules for slices of other APIs are left out, and those for slices of other projects, which a
    Shared VPC's host project may have.
    """
    living = {rule_name(slice_) for slice_ in slices}
    ours = [
        rule
        for rule in rules
        if is_ours(rule)
        and not _of_another(rule, project)
        and ("compute" if "/instances/" in rule.description else "tpu") in apis
    ]
    return tuple(rule for rule in ours if _made_for(rule) not in living)


def slices_beside(others: Iterable[SliceProvider], zone: str) -> list[Slice]:
    """Return the slices of the APIs that settings leave out; they may share rules with others.

    An API that may not be read has none. Raises `TpukitError` if a zone does not answer.
    """
    slices = list[Slice]()
    for provider in others:
        with suppress(NotAllowed, NotEnabled):
            listed = provider.list(zone)
            if listed.unreachable:
                raise TpukitError(f"no answer from {', '.join(listed.unreachable)}")
            slices += listed.slices
    return slices


def is_ours(rule: FirewallRule) -> bool:
    """Return True if a rule's name has the form of our names."""
    return _TAG.fullmatch(rule.name) is not None


def is_for(rule: FirewallRule, name: str) -> bool:
    """Return True if a rule belongs to a slice of that name, in any zone."""
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
                note="leave out --source-range to allow your own address, or add --allow-world"
            ),
        )
    return checked


def remove(provider: FirewallProvider, name: str) -> bool:
    """Remove one of our rules; return True if it existed.

    Raises `BadInput` if the name does not start with our prefix.
    """
    if not name.startswith(PREFIX):
        raise BadInput(f"{name} is not a rule of tpukit's")
    if all(rule.name != name for rule in provider.list()):
        return False
    _delete(provider, name)
    return True


def missing(provider: FirewallProvider, slice_: Slice, source: str) -> str:
    """Return "" if a rule admits SSH from `source` to the slice, else a message about the rule."""
    deciding = packet_filter.deciding(provider.list(), slice_, source)
    if deciding and deciding.allowed:
        return ""
    network = slice_.network or "default"
    if deciding:
        return f"firewall rule {deciding.name} of network {network} denies {SSH} from {source}"
    tags = ", ".join(slice_.tags) or "(the slice has none)"
    return f"no firewall rule of network {network} admits {SSH} from {source} to the tags {tags}"


def close_command(rule: FirewallRule, project: str) -> Fix:
    """Return the command that removes our rule, or disables another rule."""
    if is_ours(rule):
        return Fix.command("tpukit", "firewall", "remove", rule.name)
    update = ("gcloud", "compute", "firewall-rules", "update", rule.name, "--disabled")
    return Fix.command(*update, "--project", project, note="--no-disabled opens it again")


def rule_name(slice_: Slice) -> str:
    """Return the name of a slice's rule, which is also its tag."""
    return tag(slice_.project, slice_.zone, slice_.name)


def purpose_name(slice_: Slice, purpose: str) -> str:
    """Return the name of a slice's rule for another purpose than SSH, with the same digest."""
    digest = _digest(rule_name(slice_))
    stem = _stem(slice_.name)[: len(PREFIX) + 48 - len(purpose)].rstrip("-")
    return f"{stem}-{purpose}-{digest}"


def remove_all(provider: FirewallProvider, own: str) -> None:
    """Remove all rules that were made for the slice with this tag."""
    for rule in provider.list():
        if is_ours(rule) and _made_for(rule) == own:
            _delete(provider, rule.name)


def _delete(provider: FirewallProvider, name: str) -> None:
    """Delete a rule; if that fails, read it: an answer may be lost, and one NOT_FOUND stale.

    Raises `TpukitError` unless the rule is gone.
    """
    try:
        provider.delete(name)
        return
    except TpukitError as error:
        missing = isinstance(error, NotFound)
        try:
            gone = provider.get(name) is None
        except TpukitError:
            gone = missing
        if not (gone or missing):
            raise
    if not gone:
        try:
            provider.delete(name)
        except NotFound as error:
            raise TpukitError(f"rule {name} is still there", why=error.summary()) from error


def _made_for(rule: FirewallRule) -> str:
    """Return the tag of the slice of one of our rules."""
    own = rule.target_tags[0] if len(rule.target_tags) == 1 else ""
    return own if _digest(own) == _digest(rule.name) else rule.name


def _digest(name: str) -> str:
    return name[-_DIGITS:]


def _of_another(rule: FirewallRule, project: str) -> bool:
    owner = re.match(r"[A-Za-z-]+ (?:to|of) projects/([^/]+)/", rule.description)
    return bool(owner and owner[1] != project)


def _stem(name: str) -> str:
    return f"{PREFIX}{name[:49].rstrip('-')}"

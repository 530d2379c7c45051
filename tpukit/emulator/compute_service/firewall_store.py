"""Firewall rules of the Compute Engine API, and the decision if they admit a connection."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address, ip_network

from tpukit.emulator.compute_service.collection import DocumentCollection
from tpukit.emulator.compute_service.compute_operations import bad, not_found
from tpukit.emulator.core.api_errors import Json
from tpukit.emulator.core.service_context import RESOURCE_ID, Call
from tpukit.emulator.tpu_service.node_fields import is_address
from tpukit.emulator.tpu_service.node_network import full_network

#: Only the service sets these fields; the discovery document omits that for `selfLink`.
_OWN = ("creationTimestamp", "id", "selfLink")
_PROTOCOLS = frozenset(("tcp", "udp", "icmp", "esp", "ah", "sctp", "ipip", "all"))
_NAME_RULE = f"Must be a match of regex '{RESOURCE_ID.pattern}'"
_SOURCES = ("sourceRanges", "sourceTags", "sourceServiceAccounts")
_RANGES = ("sourceRanges", "destinationRanges")
_TAGS = ("sourceTags", "targetTags")
#: Compute Engine's discovery document: these exclude tags.
_ACCOUNTS = ("sourceServiceAccounts", "targetServiceAccounts")
#: VPC documentation, "Quotas and limits", per firewall rule.
_MOST = {
    **dict.fromkeys(_RANGES, 5000),
    **dict.fromkeys(_ACCOUNTS, 10),
    "sourceTags": 30,
    "targetTags": 70,
}
#: The protocols with ports, by name and number: Compute Engine's discovery document on `ports`, and
#: gcloud's help on sctp.
_WITH_PORTS = frozenset(("tcp", "udp", "sctp", "6", "17", "132"))


#: VPC documentation, "Pre-populated rules in the default network": sources and allowed traffic.
_DEFAULT_RULES = {
    "icmp": ("0.0.0.0/0", ("icmp",)),
    "internal": ("10.128.0.0/9", ("tcp:0-65535", "udp:0-65535", "icmp")),
    "rdp": ("0.0.0.0/0", ("tcp:3389",)),
    "ssh": ("0.0.0.0/0", ("tcp:22",)),
}
_DEFAULT_PRIORITY = 65534


class Firewalls(DocumentCollection):
    """The firewall rules of every project. A change works at once; its operation ends later."""

    kind, collection = "firewall", "firewalls"

    def open_project(self, project: str) -> None:
        """Record a project on its first call, with Google's default rules in its network."""
        if project in self._context.state.projects:
            return
        self._context.state.projects[project] = {"items": []}
        for name, (source, traffic) in _DEFAULT_RULES.items():
            allowed = [_entry(text) for text in traffic]
            body = {"sourceRanges": [source], "allowed": allowed, "priority": _DEFAULT_PRIORITY}
            call = Call({"project": project})
            self._put(f"{self._place(call)}default-allow-{name}", self._parse(call, body))

    def list(self, call: Call) -> Json:
        place = self._place(call).rstrip("/")
        links = {"id": place, "selfLink": self._context.compute_base + place}
        return {**super().list(call), **links}

    def effective(self, call: Call) -> Json:
        """Return all rules of a network; the emulator has no firewall policies."""
        network = f"projects/{call.project}/global/networks/{call.path['network']}"
        if not self._context.has_network(call.project, network):
            raise not_found(network)
        names = (name for name, rule in self.records.items() if rule["network"] == network)
        return {"firewalls": [self.view(name) for name in names]}

    def patch(self, call: Call) -> Json:
        """Change the fields that the body names; a null or empty value clears its field."""
        name = self._find(call)
        kept = {key: value for key, value in self.records[name].items() if key not in _OWN}
        return self._replace(call, "patch", name, {**kept, **call.body})

    def update(self, call: Call) -> Json:
        """Replace the rule; the body may omit name and network."""
        name = self._find(call)
        fixed = {key: self.records[name][key] for key in ("name", "network")}
        return self._replace(call, "update", name, {**fixed, **call.body})

    def admits(self, network: str, tags: Iterable[str], source: str, port: int) -> bool:
        """Return True if `source` may open a TCP connection to `port` of a worker.

        The rule with the lowest priority number decides, and deny wins over allow. Without a rule
        the connection is refused. Compute Engine documentation, "VPC firewall rules".
        """
        reached = [
            (rule.get("priority", 1000), "denied" not in rule)
            for rule in tuple(self.records.values())
            if rule["network"] == network and _applies(rule, set(tags), source, port)
        ]
        return min(reached)[1] if reached else False

    def _replace(self, call: Call, verb: str, name: str, wanted: Json) -> Json:
        old, rule = self.records[name], self._parse(call, wanted)
        for key in ("name", "network", "direction"):
            if rule.get(key) != old[key]:
                raise bad(key, rule.get(key, ""), "It cannot be changed.")
        kept = {key: old[key] for key in ("id", "creationTimestamp")}
        self.records[name] = {**rule, **kept}
        return self._operations.begin(call, verb, name)

    def view(self, full: str) -> Json:
        rule = super().view(full)
        return {**rule, "network": self._context.compute_base + rule["network"]}

    def _fields(self, call: Call) -> Json:
        return self._parse(call, call.body)

    def _parse(self, call: Call, body: Json) -> Json:
        rule = {k: v for k, v in body.items() if k not in _OWN and v not in (None, [], "")}
        network = full_network(self._context, call.project, rule.get("network"))
        if not network.startswith(f"projects/{call.project}/"):
            raise bad("network", network, "A rule belongs to the project of its network.")
        if not self._context.has_network(call.project, network):
            raise not_found(network)
        rule = {"direction": "INGRESS", "priority": 1000, "disabled": False, **rule}
        rule = {"logConfig": {"enable": False}, **rule, "network": network}
        if rule["direction"] == "INGRESS" and not any(map(rule.get, _SOURCES)):
            rule["sourceRanges"] = ["0.0.0.0/0"]
        _check_traffic(rule)
        _check_ends(rule)
        return rule


def _entry(text: str) -> Json:
    protocol, _, port = text.partition(":")
    return {"IPProtocol": protocol, **({"ports": [port]} if port else {})}


def _check_traffic(rule: Json) -> None:
    if bool(rule.get("allowed")) == bool(rule.get("denied")):
        raise bad("allowed", "", "Exactly one of allowed and denied must be specified.")
    action = "allowed" if rule.get("allowed") else "denied"
    for number, entry in enumerate(rule[action]):
        field, protocol = f"{action}[{number}]", entry.get("IPProtocol", "").lower()
        known = protocol in _PROTOCOLS or (protocol.isdecimal() and int(protocol) <= 255)
        if not known:
            raise bad(f"{field}.IPProtocol", protocol, "Unknown protocol.")
        for place, port in enumerate(entry.get("ports", ())):
            if protocol not in _WITH_PORTS:
                why = "Ports may only be specified on rules whose protocol is tcp, udp or sctp."
                raise bad(f"{field}.ports[{place}]", port, why)
            if _port_range(port) is None:
                why = "Must be a port or a range of ports."
                raise bad(f"{field}.ports[{place}]", port, why)
    if not 0 <= rule["priority"] <= 65535:
        raise bad("priority", rule["priority"], "Must be between 0 and 65535.")


def _check_ends(rule: Json) -> None:
    """Raise `ApiError` for bad sources and targets, and for those that exclude each other."""
    given = next((name for name in _SOURCES if name in rule), None)
    if rule["direction"] == "EGRESS" and given:
        raise bad(given, rule[given], "A rule for EGRESS cannot have sources.")
    accounts = [name for name in _ACCOUNTS if name in rule]
    tags = [name for name in _TAGS if name in rule]
    if accounts and tags:
        why = f"{accounts[0]} cannot be used at the same time as {tags[0]}."
        raise bad(accounts[0], rule[accounts[0]], why)
    for field, most in _MOST.items():
        if len(rule.get(field, ())) > most:
            raise bad(field, len(rule[field]), f"At most {most} values are allowed.")
    for field in _TAGS:
        for number, tag in enumerate(rule.get(field, ())):
            if not RESOURCE_ID.fullmatch(tag):
                raise bad(f"{field}[{number}]", tag, _NAME_RULE)
    for field in _ACCOUNTS:
        for number, account in enumerate(rule.get(field, ())):
            if not is_address(account):
                raise bad(f"{field}[{number}]", account, "Must be an e-mail address.")
    _check_ranges(rule)


def _check_ranges(rule: Json) -> None:
    versions = set()
    for field in _RANGES:
        for index, text in enumerate(rule.get(field, ())):
            try:
                versions.add(ip_network(text).version)
            except ValueError as error:
                why = "Must be a valid CIDR address range."
                raise bad(f"{field}[{index}]", text, why) from error
            # VPC documentation, "Use VPC firewall rules": either IPv4 or IPv6 ranges, not both. The
            # real message is not on record.
            if len(versions) > 1:
                raise bad(f"{field}[{index}]", text, "IPv4 and IPv6 ranges cannot be mixed.")


def _port_range(text: str) -> range | None:
    first, dash, last = text.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        return None
    bounds = (int(first), int(last) if dash else int(first))
    return range(bounds[0], bounds[1] + 1) if bounds[0] <= bounds[1] <= 65535 else None


def _applies(rule: Json, tags: set[str], source: str, port: int) -> bool:
    """Return True if a rule covers a connection from `source` to `port` of a worker with `tags`.

    Source tags and service accounts match no connection: in the emulator, no source has any.
    """
    if rule["disabled"] or rule["direction"] != "INGRESS":
        return False
    targets = rule.get("targetTags")
    if rule.get("targetServiceAccounts") or (targets and not tags & set(targets)):
        return False
    entries = rule.get("allowed") or rule["denied"]
    return _from(rule, source) and any(_covers(entry, port) for entry in entries)


def _from(rule: Json, source: str) -> bool:
    address = ip_address(source)
    networks = [ip_network(text) for text in rule.get("sourceRanges", ())]
    return any(address.version == net.version and address in net for net in networks)


def _covers(entry: Json, port: int) -> bool:
    protocol = entry["IPProtocol"].lower()
    if protocol == "all":
        return True
    ports = [_port_range(text) for text in entry.get("ports", ())]
    return protocol in ("tcp", "6") and (
        not ports or any(port in allowed for allowed in ports if allowed)
    )

"""Delete slices and queued resources with their firewall rules, and find left-over rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tpukit.access import ssh_rule
from tpukit.clock import Deadline
from tpukit.errors import (
    BadInput,
    Fix,
    Interrupted,
    NotAllowed,
    NotFound,
    Terminated,
    TpukitError,
)
from tpukit.google.provider import FirewallProvider, SliceProvider
from tpukit.models import FirewallRule, QueuedResource, Slice, SliceList
from tpukit.slices import change, naming, queued
from tpukit.slices.find import find
from tpukit.slices.journal import Journal
from tpukit.slices.last_seen import LastSeen, OnState, interrupted, last_seen
from tpukit.slices.survey import Leftover, still_due
from tpukit.ssh.fan_out import fan_out

OnWarning = Callable[[str], None]
Thing = Slice | QueuedResource


@dataclass(frozen=True)
class Deleted:
    """The result of several deletions: names, errors by name, and rules that could not be removed.

    `spared` names things that were no longer due when their turn came.
    """

    names: Sequence[str]
    spared: Sequence[str]
    failed: Mapping[str, TpukitError]
    rules: Sequence[str]

    def check(self) -> None:
        """Raise the first error, if there is one."""
        for error in self.failed.values():
            raise error


@dataclass(frozen=True)
class Cleanup:
    """Deletes slices and queued resources, with everything that was made for them.

    `on_state` returns the callback for the states of the thing with a name. `after` is called with
    each deleted slice, to forget this machine's records of it. `others` are the APIs that settings
    leave out: a slice there may share the name, the tag and so the rule of one of ours.
    """

    provider: SliceProvider
    firewall: FirewallProvider
    project: str
    journal: Journal
    on_state: Callable[[str], OnState]
    on_warning: OnWarning
    after: Callable[[Slice], object] = lambda slice_: None
    others: Sequence[SliceProvider] = ()

    def reap(self, due: Sequence[Leftover], deadline: Deadline) -> Deleted:
        """Delete leftovers, with everything that was made for them.

        A leftover stays if it was extended or replaced since it was shown.
        """
        things = {leftover.label: leftover.thing for leftover in due}
        near = self.provider.within(deadline)
        try:
            return self.end_all(things, deadline, lambda thing: still_due(near, thing))
        except (Interrupted, Terminated) as error:
            error.fix = Fix.command("tpukit", "reap")
            raise

    def end_all(
        self,
        things: Mapping[str, Thing],
        deadline: Deadline,
        is_due: Callable[[Thing], bool] = lambda thing: True,
    ) -> Deleted:
        """Delete the things, in parallel; after a signal, the error names the remaining ones.

        `is_due` checks each thing immediately before its deletion. A failure does not stop the
        other deletions, and a rule that cannot be removed does not stop its slice's.
        """
        left, rules = dict(things), list[str]()
        seen = {
            label: last_seen(self.provider, thing)
            for label, thing in things.items()
            if isinstance(thing, Slice)
        }

        def one(label: str) -> bool:
            thing, own = things[label], seen.get(label)
            stay = None
            try:
                due = is_due(thing)
            except TpukitError as error:
                own.complete(error) if own else queued.name_left(error, thing.name, thing.zone)
                raise
            if due:
                stay = self.end(thing, deadline, label=label, seen=own, is_due=is_due)
            rules.extend(stay or ())
            left.pop(label)
            return stay is not None

        try:
            outcomes = fan_out([*things], one, window=len(things))
        except KeyboardInterrupt as signal:
            error = interrupted(signal, [seen[label] for label in left if label in seen])
            requests = [thing for thing in left.values() if isinstance(thing, QueuedResource)]
            error.exists += tuple(
                f"queued resource {thing.name} in {thing.zone}, {thing.state} when last seen"
                for thing in requests
            )
            if requests and len(requests) == len(left):
                names = [request.name for request in requests]
                error.fix = Fix.command("tpukit", "queue", "delete", *names)
            raise error from None
        return Deleted(
            [outcome.item for outcome in outcomes if outcome.value],
            [outcome.item for outcome in outcomes if outcome.value is False],
            {outcome.item: outcome.error for outcome in outcomes if outcome.error},
            rules,
        )

    def end(
        self,
        thing: Thing,
        deadline: Deadline,
        *,
        label: str = "",
        seen: LastSeen | None = None,
        is_due: Callable[[Thing], bool] = lambda thing: True,
    ) -> Sequence[str] | None:
        """Delete a slice, or a queued resource with its slices; return the names of rules left.

        A slice's queued resource is deleted too, unless another slice uses it. Data disks stay,
        with a warning, because tpukit did not make them. Returns None if a slice stays, because it
        is not due any more when its delete is requested.

        Raises the errors of `change.delete` and `queued.delete_queued`; for `seen` see the former.
        """
        say, near = self.on_state(label or thing.name), self.provider.within(deadline)
        if isinstance(thing, Slice):
            request, slices = self._request_of(thing, near), [thing]
        else:
            request, slices = thing, []
            with suppress(TpukitError):  # then this machine's records of them stay
                slices = queued.slices_of(near.once(), thing)
        given = {"deadline": deadline, "journal": self.journal, "on_state": say}
        if isinstance(thing, Slice):
            seen = seen or last_seen(self.provider, thing)
            ended = change.delete(
                *(self.provider, thing),
                seen=seen,
                stays=lambda current: not is_due(current),
                **given,  # type: ignore[arg-type]
            )
            if not ended:
                return None
            say("gone; another slice has its name now" if seen.replaced else "deleted")
            request = request if request and self._is_empty(request, near) else None
        if request:
            force = request is thing and not request.dead
            queued.delete_queued(self.provider, request, force=force, **given)  # type: ignore[arg-type]
            say("deleted" if request is thing else f"queued resource {request.name}: deleted")
        for slice_ in slices:
            self._forget(slice_)
        return self._remove_rules(thing, slices, deadline)

    def _request_of(self, slice_: Slice, provider: SliceProvider) -> QueuedResource | None:
        """Return the queued resource that a slice came from; None if it is unreadable or newer."""
        if not slice_.queued_resource:
            return None
        try:
            request = provider.get_queued(slice_.zone, slice_.queued_resource)
            return request if _came_from(slice_, request) else None
        except NotFound:
            return None
        except TpukitError as error:
            named = f"queued resource {slice_.queued_resource} of {slice_.name}"
            self.on_warning(f"{named} stays, and keeps its quota: {error.summary()}")
            return None

    def _is_empty(self, request: QueuedResource, provider: SliceProvider) -> bool:
        """Return True if no other slice uses a queued resource; False if that is unknown."""
        try:
            slices = queued.slices_of(provider, request)
            return all(slice_.state == "DELETING" for slice_ in slices)
        except TpukitError as error:
            self.on_warning(f"queued resource {request.name} stays: {error.summary()}")
            return False

    def _forget(self, slice_: Slice) -> None:
        """Forget this machine's records of a slice, and warn of its data disks."""
        stays = "stays, and bills until it is deleted" if self.provider.bills else "stays"
        for disk in slice_.data_disks:
            self.on_warning(f"data disk {disk.name} of {slice_.name} {stays}")
        self.after(slice_)

    def _remove_rules(
        self, thing: Thing, slices: Sequence[Slice], deadline: Deadline
    ) -> Sequence[str]:
        """Remove the rules of a thing's slices; return the names of those that may remain.

        Earlier slices of a queued resource may have left rules too. If a new slice has the name and
        the tag, the rules are its own and stay. An account that may not read rules has made none.
        """
        tied = [slice_ for slice_ in slices if ssh_rule.rule_name(slice_) in slice_.tags]
        hosts = {slice_.name: slice_.network_project for slice_ in tied}
        if isinstance(thing, QueuedResource):
            hosts = {**dict.fromkeys(thing.slices, thing.network_project), **hosts}
        provider, stay = self.provider.within(deadline), []
        for name, host in hosts.items():
            tag = ssh_rule.tag(thing.project, thing.zone, name)
            try:
                with suppress(NotFound):
                    if tag in provider.get(thing.zone, name).tags:
                        continue
                beside = ssh_rule.slices_beside(
                    [other.within(deadline) for other in self.others], thing.zone
                )
                if any(tag in slice_.tags for slice_ in beside):
                    self.on_warning(f"firewall rule {tag} stays: another API has a {name} with it")
                    continue
                ssh_rule.remove_all(self.firewall.within(deadline).of(host), tag)
            except TpukitError as error:
                self.on_warning(f"the firewall rule of {name} may stay: {error.summary()}")
                stay += [] if isinstance(error, NotAllowed) else [tag]
        return stay

    def remove_left(self, names: Sequence[str]) -> Sequence[str]:
        """Remove the rules of deleted slices with these names; return the rules' names."""
        removed: list[str] = []
        for rules, rule in self.left_over(names):
            try:
                removed += [rule.name] if ssh_rule.remove(rules, rule.name) else []
            except TpukitError as error:
                self.on_warning(f"rule {rule.name} is still there: {error.summary()}")
        return removed

    def rule_of(self, name: str, zone: str) -> tuple[FirewallProvider, str]:
        """Return the firewall of a slice's network, and the name of the slice's rule.

        `name` is the slice's or the rule's.

        Raises:
            NotFound: there is no such slice, and no rule of a deleted one.
            BadInput: several deleted slices of that name have left a rule.
            TpukitError: the rules or the slices could not be read.
        """
        for rules, rule in self._rules():
            if rule.name == name:
                return rules, name
        try:
            slice_ = find(self.provider, naming.check_name(name), zone)
            return self.firewall.of(slice_.network_project), ssh_rule.rule_name(slice_)
        except NotFound:
            tag = ssh_rule.tag(self.project, zone, name)
            gone = [(rules, rule.name) for rules, rule in self._left_over([name])]
            left = [rule for rule in gone if not zone or rule[1] == tag]
            if not left:
                raise
        if len(left) > 1:
            raise BadInput(
                f"several slices {name} have left a rule: {', '.join(rule for _, rule in left)}",
                fix=Fix.command("tpukit", "firewall", "remove", left[0][1]),
            )
        return left[0]

    def left_over(
        self, names: Sequence[str] | None = None
    ) -> Sequence[tuple[FirewallProvider, FirewallRule]]:
        """Return pairs of a firewall and one of its rules whose slice is gone.

        `names` limit the slices; None means all. A `TpukitError` becomes a warning, with no rules.
        """
        try:
            return self._left_over(names)
        except TpukitError as error:
            self.on_warning(f"firewall rules were not checked: {error.summary()}")
            return ()

    def _left_over(
        self, names: Sequence[str] | None
    ) -> Sequence[tuple[FirewallProvider, FirewallRule]]:
        there = [] if names == [] else self._rules()
        if names is not None:
            there = [rule for rule in there if any(ssh_rule.is_for(rule[1], n) for n in names)]
        listed = self.provider.list("-") if there else SliceList(())
        if listed.unreachable:
            raise TpukitError(f"no answer from {', '.join(listed.unreachable)}")
        ours, apis = [rule for _, rule in there], self.provider.apis
        gone = ssh_rule.left_over(ours, listed.slices, self.project, apis)
        beside = ssh_rule.slices_beside(self.others, "-") if gone else []
        gone = ssh_rule.left_over(gone, beside, self.project, apis)
        return [(rules, rule) for rules, rule in there if rule in gone]

    def _rules(self) -> Sequence[tuple[FirewallProvider, FirewallRule]]:
        """Return our rules in the project, and in the host project of its Shared VPC, if any."""
        host = ""
        with suppress(TpukitError):  # an account that may not ask has made no rule there
            host = self.firewall.once().host_project()
        both = [self.firewall, *([self.firewall.of(host)] if host else [])]
        return [(rules, rule) for rules in both for rule in rules.list() if ssh_rule.is_ours(rule)]


def _came_from(slice_: Slice, request: QueuedResource) -> bool:
    """Return False if a request is newer than the slice, or has no slice yet.

    The slice may have been adopted, so its owner counts only if its time of creation is unknown.
    """
    if request.state in ("CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES"):
        return False
    if slice_.created:
        return request.created.rstrip("Z") <= slice_.created.rstrip("Z")
    return naming.owner(slice_) == request.labels.get(naming.OWNER, "")


def not_deleted(
    failed: Mapping[str, TpukitError],
    deleted: Sequence[str],
    *,
    things: str = "slices",
    verbs: Sequence[str] = (),
    fix: Fix | None = None,
) -> TpukitError:
    """Return the error if some deletions failed; `NotFound` only if no error is worse.

    Its details have the `deleted` names, and the error of each `failed` one. `verbs` is the command
    group for the `things`; `fix` replaces the suggested commands of that group.
    """
    if len(failed) + len(deleted) == 1:
        return next(iter(failed.values()))
    left = [name for name, error in failed.items() if not isinstance(error, NotFound)]
    again = Fix.command("tpukit", *verbs, "delete", *left) if left else None
    shows = Fix.command("tpukit", *verbs, "list", note=f"shows the {things}")
    return type(failed[left[0]] if left else next(iter(failed.values())))(
        f"{len(failed)} of {len(failed) + len(deleted)} {things} were not deleted",
        reason=", ".join(failed),
        why="\n".join(f"{name}: {error.summary()}" for name, error in failed.items()),
        exists=[line for error in failed.values() for line in error.exists],
        fix=fix or again or shows,
        details={
            "deleted": list(deleted),
            "failed": {name: error.document() for name, error in failed.items()},
        },
    )

"""The requests of `up` and `create`, built from their flags."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from typer import Option

from tpukit.accelerators import (
    AcceleratorType,
    is_listed,
    meant_zone,
    retired_runtime,
    runtime_fits,
    unlisted,
)
from tpukit.cli.parameters import Purpose, Ttl, life, pairs, words
from tpukit.cli.toolkit import Toolkit
from tpukit.clock import Clock
from tpukit.console import Console
from tpukit.errors import BadInput, Fix
from tpukit.google.node_json import MAX_RUN
from tpukit.models import QUEUE_ONLY, DataDisk, SliceRequest
from tpukit.slices import lifetime, naming
from tpukit.text import one_line


@dataclass(frozen=True)
class RequestFlags:
    """The properties of a new slice, named as in gcloud."""

    runtime_version: Annotated[
        str, Option(metavar="VERSION", help="Image of the workers; default: the type's image.")
    ] = ""
    spot: Annotated[bool, Option("--spot", help="Cheaper capacity that can be preempted.")] = False
    preemptible: Annotated[
        bool, Option("--preemptible", help="The older form of spot, for at most 24 hours.")
    ] = False
    reserved: Annotated[bool, Option("--reserved", help="Capacity of a reservation.")] = False
    reservation: Annotated[str, Option(metavar="NAME", help="Capacity of this reservation.")] = ""
    on_demand: Annotated[
        bool, Option("--on-demand", help="Capacity that is never preempted (default).")
    ] = False
    best_effort: Annotated[
        bool,
        Option("--best-effort", help="The tier below on-demand; the request waits in a queue."),
    ] = False
    flex_start: Annotated[
        bool,
        Option(
            "--flex-start",
            help="Cheap capacity for --max-run-duration; the request waits in a queue.",
        ),
    ] = False
    max_run_duration: Annotated[
        str, Option(metavar="DURATION", help="Google deletes the slice after it; at most 7d.")
    ] = ""
    allow_unfit_runtime: Annotated[
        bool,
        Option("--allow-unfit-runtime", help="Allow a runtime version that is known not to fit."),
    ] = False
    labels: Annotated[str, Option(metavar="KEY=VALUE,…", help="Labels of the slice.")] = ""
    tags: Annotated[str, Option(metavar="TAG,…", help="Additional network tags.")] = ""
    metadata: Annotated[str, Option(metavar="KEY=VALUE,…", help="Metadata of the slice.")] = ""
    network: Annotated[str, Option(metavar="NETWORK", help="Network of the workers.")] = ""
    subnetwork: Annotated[str, Option(metavar="SUBNETWORK", help="Subnetwork of the workers.")] = ""
    internal_ips: Annotated[bool, Option("--internal-ips", help="No external addresses.")] = False
    data_disks: Annotated[
        list[str] | None,
        Option(
            "--data-disk",
            metavar="DISK",
            help="projects/…/zones/…/disks/…[,mode=read-only]; repeatable. Several workers can "
            "only read it.",
        ),
    ] = None
    service_account: Annotated[str, Option(metavar="EMAIL", help="Account of the workers.")] = ""
    ttl: Ttl = ""
    purpose: Purpose = ""
    api: Annotated[
        str,
        Option(metavar="API", help="tpu or compute (Compute Engine); default: tpu if it can."),
    ] = ""

    def repeated(self) -> tuple[str, ...]:
        """Return the flags that a later `up` needs to find the same slice, without route flags."""
        said = [f"--{tier}" for tier in _BOUGHT[:-1] if self.buys(tier)]
        for name in ("reservation", "network", "runtime_version", "max_run_duration", "api"):
            value = getattr(self, name)
            said += [f"--{name.replace('_', '-')}", value] if value else []
        return tuple(said)

    @property
    def unlimited(self) -> RequestFlags:
        """The flags without the longest run."""
        return replace(self, max_run_duration="")

    def buys(self, tier: str) -> bool:
        """Return True if the flag of a tier of capacity was given."""
        named = tier == "reserved" and bool(self.reservation)
        return named or bool(getattr(self, tier.replace("-", "_")))


DEFAULTS = RequestFlags()
#: The flags that choose how capacity is bought; at most one may be given.
_BOUGHT = ("spot", "preemptible", "reserved", *QUEUE_ONLY, "on-demand")
_WEEK = 7 * 24 * 3600
_DISK = re.compile(r"projects/[^/\s]+/(zones|regions)/[^/\s]+/disks/[^/\s]+")


def wanted(first: str, second: str, *, allow_unlisted: bool = False) -> tuple[AcceleratorType, str]:
    """Return the accelerator type and the name from two words, in either order.

    With `allow_unlisted`, a type that is not in our table may come first. Raises `BadInput` if
    neither word is a type.
    """
    if allow_unlisted and not _names_type(second) and not _names_type(first):
        return unlisted(first.lower()), second
    if not _names_type(first) and _names_type(second):
        first, second = second, first
    return AcceleratorType.parse(first.lower() if _names_type(first) else first), second


def _names_type(text: str) -> bool:
    return is_listed(text.lower())


def slice_requests(
    toolkit: Toolkit, name: str, places: Sequence[tuple[AcceleratorType, str, RequestFlags]]
) -> list[SliceRequest]:
    """Return the labelled requests for one name, one for each place.

    Raises:
        BadInput: flags contradict each other or have bad values, or a runtime version is known not
            to find the chips.
    """
    toolkit.settings.require("project")
    for _, zone, _ in places:
        _check_zone(zone)
    first = places[0][0].name
    chosen = naming.check_name(name or naming.default_name(toolkit.cloud.identity.account, first))
    toolkit.slices.hints.forget(chosen)  # soon several slices may have that name
    nonce = secrets.token_hex(6)
    toolkit.slices.name_hints.saw([chosen])
    return [
        naming.labelled(
            _request(toolkit, chosen, accelerator, zone, flags), toolkit.cloud.owner, nonce
        )
        for accelerator, zone, flags in places
    ]


def bought(flags: RequestFlags, tiers: Sequence[str]) -> list[RequestFlags]:
    """Return the flags with each of the tiers of capacity in turn.

    Raises `BadInput` for an unknown tier, and beside a tier's flag.
    """
    for tier in tiers:
        if tier not in _BOUGHT:
            fix = Fix(note=", ".join(_BOUGHT))
            raise BadInput(f"--purchase cannot be {one_line(tier)[:60]}", fix=fix)
        if given := next(filter(flags.buys, _BOUGHT), ""):
            raise BadInput(f"--purchase and --{given} exclude each other")
    # The longest run belongs to flex-start alone, and without flex-start it is refused.
    plain = flags.unlimited if "flex-start" in tiers else flags
    chosen: list[Mapping[str, Any]] = [{tier.replace("-", "_"): True} for tier in tiers]
    return [replace(flags if "flex_start" in one else plain, **one) for one in chosen or [{}]]


def on_both_roads(
    toolkit: Toolkit, accelerator: AcceleratorType, flags: RequestFlags
) -> list[RequestFlags]:
    """Return the flags with each API that can make a type, if the settings name both APIs."""
    from tpukit.google.compute_machines import machine_of
    from tpukit.google.instance_json import check_capacity

    one_only = flags.api or flags.runtime_version or not is_listed(accelerator.name)
    if one_only or {*toolkit.settings.get("apis").split(",")} != {"tpu", "compute"}:
        return [flags]
    try:
        machine_of(accelerator.name)
        check_capacity(_provisioning(flags), flags.reservation)
    except BadInput:
        return [flags]
    return [replace(flags, api=api) for api in ("tpu", "compute")]


def say_wanted(console: Console, requests: Sequence[SliceRequest]) -> None:
    """Print the requested slice before the first call to the cloud."""
    types = dict.fromkeys(request.accelerator_type for request in requests)
    zones = dict.fromkeys(request.zone for request in requests)
    where = requests[0].zone if len(zones) == 1 else f"one of {len(zones)} zones"
    name, project = requests[0].name, requests[0].project
    console.say(f"slice {name}: {' or '.join(types)} in {where} of project {project}")


def _request(
    toolkit: Toolkit, name: str, accelerator: AcceleratorType, zone: str, flags: RequestFlags
) -> SliceRequest:
    api = _api(toolkit, accelerator, flags)
    return SliceRequest(
        name=name,
        api=api,
        project=toolkit.settings.get("project"),
        zone=zone,
        accelerator_type=accelerator.name,
        runtime_version=_runtime(accelerator, flags, api),
        provisioning=_provisioning(flags),
        reservation=flags.reservation,
        network=flags.network or toolkit.settings.get("network") or "default",
        subnetwork=flags.subnetwork,
        external_addresses=not flags.internal_ips,
        labels={
            **check_labels(pairs(flags.labels, "--labels")),
            **_lifetime(toolkit.clock, flags),
            **_longest_run(flags),
        },
        tags=words(flags.tags),
        metadata=pairs(flags.metadata, "--metadata"),
        data_disks=tuple(data_disk(disk, accelerator.workers) for disk in flags.data_disks or ()),
        service_account=flags.service_account,
    )


def _lifetime(clock: Clock, flags: RequestFlags) -> Mapping[str, str]:
    ttl = life(flags.ttl, "--ttl") if flags.ttl else None
    return lifetime.labels(clock.time(), ttl, flags.purpose)


def _provisioning(flags: RequestFlags) -> str:
    given = [tier for tier in _BOUGHT if flags.buys(tier)]
    if len(given) > 1:
        raise BadInput(f"--{given[0]} and --{given[1]} exclude each other")
    return given[0] if given else "on-demand"


def _longest_run(flags: RequestFlags) -> Mapping[str, str]:
    """Return the label of a flex-start slice, for at most a week.

    Source of the limit: Cloud TPU documentation, "Request TPUs using Flex-start".
    """
    if flags.flex_start != bool(flags.max_run_duration):
        raise BadInput(
            "--flex-start and --max-run-duration need each other",
            fix=Fix(note="for example: --flex-start --max-run-duration 8h; at most 7d"),
        )
    if not flags.flex_start:
        return {}
    longest = life(flags.max_run_duration, "--max-run-duration")
    if longest > _WEEK:
        raise BadInput("--max-run-duration is at most 7d")
    return {MAX_RUN: f"{longest:.0f}"}


def data_disk(text: str, workers: int) -> DataDisk:
    """Parse a data disk, `PATH` or `source=PATH,mode=read-only`, for a slice with `workers`.

    Several workers can only read a disk: Cloud TPU documentation, "Attach durable block storage".
    """
    source, *options = text.removeprefix("source=").split(",")
    mode = {"": "", "mode=read-only": "read-only", "mode=read-write": "read-write"}.get(
        ",".join(options)
    )
    if mode is None or not _DISK.fullmatch(source):
        raise BadInput(
            f"{one_line(text)!r} is not a data disk",
            fix=Fix(note="for example: --data-disk projects/my-project/zones/ZONE/disks/my-disk"),
        )
    if mode == "read-write" and workers > 1:
        raise BadInput(
            f"the {workers} workers of a slice can only read a data disk",
            fix=Fix(note="add mode=read-only, or leave the mode out"),
        )
    return DataDisk(source, mode == "read-only" or workers > 1)


def check_labels(given: Mapping[str, str]) -> Mapping[str, str]:
    """Return the labels unchanged; raise `BadInput` if the API would refuse one."""
    for key, value in given.items():
        if (naming.label(key), naming.label(value)) != (key, value):
            raise BadInput(
                f"{key}={value} is not a valid label",
                why="labels are up to 63 lower-case letters, digits, hyphens and underscores",
            )
    return given


def _check_zone(zone: str) -> None:
    """Raise `BadInput` for a misspelled zone, which the API would answer with "denied"."""
    if meant := meant_zone(zone):
        raise BadInput(f"there is no zone {zone}", fix=Fix(note=f"did you mean --zone {meant}?"))


def _api(toolkit: Toolkit, accelerator: AcceleratorType, flags: RequestFlags) -> str:
    """Return the API for a new slice: "tpu" if no flag and no setting says otherwise.

    Types that our table of the Cloud TPU API lacks, such as tpu7x-8, default to the other API.
    """
    apis = toolkit.settings.get("apis").split(",")
    unlisted = not is_listed(accelerator.name) and not flags.runtime_version
    api = flags.api or ("tpu" if "tpu" in apis else "compute")
    if not flags.api and unlisted and "compute" in apis:
        api = "compute"
    if api not in ("tpu", "compute"):
        raise BadInput(f"{one_line(api)} is not an API", fix=Fix(note="--api tpu or --api compute"))
    if api not in apis:
        raise BadInput(
            f"--api {api} needs the setting apis, so that every command sees the slice",
            fix=Fix.command("tpukit", "config", "set", "apis", "tpu,compute"),
        )
    if api == "compute":
        from tpukit.google.instance_json import check_capacity

        check_capacity(_provisioning(flags), flags.reservation)
    return api


def _runtime(accelerator: AcceleratorType, flags: RequestFlags, api: str) -> str:
    wanted = flags.runtime_version
    if api == "compute":
        from tpukit.google.compute_machines import machine_of

        machine = machine_of(accelerator.name)
        return wanted or machine.image_family
    if not wanted and not accelerator.runtime_version:
        raise BadInput(
            f"the runtime version for {accelerator.name} is unknown",
            fix=Fix(note="add --runtime-version"),
        )
    bad = runtime_fits(accelerator, wanted) or retired_runtime(wanted)
    if bad and not flags.allow_unfit_runtime:
        fitting = accelerator.runtime_version or "…"
        raise BadInput(
            bad,
            fix=Fix(note=f"--runtime-version {fitting}"),
            otherwise=Fix(note="--allow-unfit-runtime, if you know better"),
        )
    return wanted or accelerator.runtime_version

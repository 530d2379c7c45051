"""Builds the requests that `up` and `create` send from their flags."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from typer import Option

from tpukit.accelerators import AcceleratorType, is_listed, meant_zone, runtime_fits, unlisted
from tpukit.cli.parameters import pairs, seconds, words
from tpukit.cli.toolkit import Toolkit
from tpukit.errors import BadInput, Fix
from tpukit.models import DataDisk, SliceRequest
from tpukit.slices import lifetime, naming
from tpukit.text import one_line


@dataclass(frozen=True)
class RequestFlags:
    """What can be said of a slice when it is made; gcloud's words where it has one."""

    runtime_version: Annotated[
        str, Option(metavar="VERSION", help="Image of the workers; default: the type's own.")
    ] = ""
    spot: Annotated[bool, Option("--spot", help="Cheaper capacity that can be preempted.")] = False
    preemptible: Annotated[
        bool, Option("--preemptible", help="Spot's older form: 24 hours at most.")
    ] = False
    reserved: Annotated[bool, Option("--reserved", help="Capacity of a reservation.")] = False
    on_demand: Annotated[
        bool, Option("--on-demand", help="Capacity that stays; so it is where nothing is said.")
    ] = False
    allow_unfit_runtime: Annotated[
        bool,
        Option("--allow-unfit-runtime", help="A runtime version known to leave it without chips."),
    ] = False
    labels: Annotated[str, Option(metavar="KEY=VALUE,…", help="Labels of the slice.")] = ""
    tags: Annotated[str, Option(metavar="TAG,…", help="More network tags.")] = ""
    metadata: Annotated[str, Option(metavar="KEY=VALUE,…", help="Metadata of the slice.")] = ""
    network: Annotated[str, Option(metavar="NETWORK", help="Network of the workers.")] = ""
    subnetwork: Annotated[str, Option(metavar="SUBNETWORK", help="Its part for the workers.")] = ""
    internal_ips: Annotated[bool, Option("--internal-ips", help="No external addresses.")] = False
    data_disks: Annotated[
        list[str] | None,
        Option(
            "--data-disk",
            metavar="DISK",
            help="projects/…/zones/…/disks/…[,mode=read-only]; repeatable. Several workers share "
            "it read-only.",
        ),
    ] = None
    service_account: Annotated[str, Option(metavar="EMAIL", help="Account of the workers.")] = ""
    ttl: Annotated[
        str, Option(metavar="DURATION", help="How long it may live, from now on: 90m, 8h, 3d.")
    ] = ""
    purpose: Annotated[str, Option(metavar="TEXT", help="What it is for, as a label.")] = ""

    def repeated(self) -> tuple[str, ...]:
        """Return the flags without which another command would ask for another slice; those of the
        route are not among them."""
        said = [
            f"--{name.replace('_', '-')}"
            for name in ("spot", "preemptible", "reserved")
            if getattr(self, name)
        ]
        for name, value in (("network", self.network), ("runtime-version", self.runtime_version)):
            said += [f"--{name}", value] if value else []
        return tuple(said)


DEFAULTS = RequestFlags()
#: How capacity is bought; one of them.
_BOUGHT = ("spot", "preemptible", "reserved", "on-demand")
_DISK = re.compile(r"projects/[^/\s]+/(zones|regions)/[^/\s]+/disks/[^/\s]+")


def wanted(first: str, second: str, *, allow_unlisted: bool = False) -> tuple[AcceleratorType, str]:
    """Return the accelerator type and the name of two words, whichever of them comes first.

    With `allow_unlisted`, a type that is not in our table is one, where it comes first. Raises
    `BadInput` where neither is a type.
    """
    if allow_unlisted and not _names_type(second) and not _names_type(first):
        return unlisted(first.lower()), second
    if not _names_type(first) and _names_type(second):
        first, second = second, first
    return AcceleratorType.parse(first.lower() if _names_type(first) else first), second


def _names_type(text: str) -> bool:
    return is_listed(text.lower())


def slice_requests(
    toolkit: Toolkit, name: str, places: Sequence[tuple[AcceleratorType, str]], flags: RequestFlags
) -> list[SliceRequest]:
    """Return the labelled requests of one name, for accelerator types in zones.

    Raises:
        BadInput: flags that contradict each other, or a runtime version known to leave no chip.
    """
    toolkit.settings.require("project")
    for _, zone in places:
        _check_zone(zone)
    first = places[0][0].name
    chosen = naming.check_name(name or naming.default_name(toolkit.identity.account, first))
    toolkit.hints.forget(chosen)  # there may be two of that name from now on
    nonce = secrets.token_hex(6)
    toolkit.name_hints.saw([chosen])
    return [
        naming.labelled(_request(toolkit, chosen, each, zone, flags), toolkit.owner, nonce)
        for each, zone in places
    ]


def say_wanted(toolkit: Toolkit, requests: Sequence[SliceRequest]) -> None:
    """Say which slice is asked for, before anything is asked of the cloud."""
    types = dict.fromkeys(each.accelerator_type for each in requests)
    zones = dict.fromkeys(each.zone for each in requests)
    where = requests[0].zone if len(zones) == 1 else f"one of {len(zones)} zones"
    name, project = requests[0].name, requests[0].project
    toolkit.console.say(f"slice {name}: {' or '.join(types)} in {where} of project {project}")


def _request(
    toolkit: Toolkit, name: str, accelerator: AcceleratorType, zone: str, flags: RequestFlags
) -> SliceRequest:
    return SliceRequest(
        name=name,
        project=toolkit.settings.get("project"),
        zone=zone,
        accelerator_type=accelerator.name,
        runtime_version=_runtime(accelerator, flags),
        provisioning=_provisioning(flags),
        network=flags.network or toolkit.settings.get("network") or "default",
        subnetwork=flags.subnetwork,
        external_addresses=not flags.internal_ips,
        labels={**check_labels(pairs(flags.labels, "--labels")), **_lifetime(toolkit, flags)},
        tags=words(flags.tags),
        metadata=pairs(flags.metadata, "--metadata"),
        data_disks=tuple(data_disk(each, accelerator.workers) for each in flags.data_disks or ()),
        service_account=flags.service_account,
    )


def _lifetime(toolkit: Toolkit, flags: RequestFlags) -> Mapping[str, str]:
    ttl = seconds(flags.ttl, "--ttl") if flags.ttl else None
    return lifetime.labels(toolkit.clock.time(), ttl, flags.purpose)


def _provisioning(flags: RequestFlags) -> str:
    given = [each for each in _BOUGHT if getattr(flags, each.replace("-", "_"))]
    if len(given) > 1:
        raise BadInput(f"--{given[0]} and --{given[1]} exclude each other")
    return given[0] if given else "on-demand"


def data_disk(text: str, workers: int) -> DataDisk:
    """Read a disk of a slice of so many workers: `PATH`, or `source=PATH,mode=read-only`.

    Several workers can only read one disk: Cloud TPU documentation, "Attach durable block storage".
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
    """Return labels as they are; raise `BadInput` for one that the API would not take."""
    for key, value in given.items():
        if (naming.label(key), naming.label(value)) != (key, value):
            raise BadInput(
                f"label {key}={value} is not a label",
                why="labels are up to 63 lower-case letters, digits, hyphens and underscores",
            )
    return given


def _check_zone(zone: str) -> None:
    """Raise `BadInput` for a misspelled zone: the API says of it that permission is denied."""
    if meant := meant_zone(zone):
        raise BadInput(f"there is no zone {zone}", fix=Fix(note=f"did you mean --zone {meant}?"))


def _runtime(accelerator: AcceleratorType, flags: RequestFlags) -> str:
    wanted = flags.runtime_version
    if not wanted and not accelerator.runtime_version:
        raise BadInput(
            f"which runtime version {accelerator.name} needs is not known",
            fix=Fix(note="add --runtime-version"),
        )
    bad = runtime_fits(accelerator, wanted) if wanted else None
    if bad and not flags.allow_unfit_runtime:
        raise BadInput(
            bad,
            fix=Fix(note=f"--runtime-version {accelerator.runtime_version}"),
            otherwise=Fix(note="--allow-unfit-runtime, where you know better"),
        )
    return wanted or accelerator.runtime_version

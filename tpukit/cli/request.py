"""Builds the one request that `up` and `create` send from their flags."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from typer import Option

from tpukit.accelerators import AcceleratorType, runtime_fits
from tpukit.cli.parameters import pairs, words
from tpukit.cli.toolkit import Toolkit
from tpukit.errors import BadInput, Fix
from tpukit.models import SliceRequest
from tpukit.slices import naming


@dataclass(frozen=True)
class RequestFlags:
    """What can be said of a slice when it is made; gcloud's words where it has one."""

    runtime_version: Annotated[
        str, Option(metavar="VERSION", help="Image of the workers; default: the type's own.")
    ] = ""
    spot: Annotated[bool, Option("--spot", help="Cheaper capacity that can be preempted.")] = False
    reserved: Annotated[bool, Option("--reserved", help="Capacity of a reservation.")] = False
    labels: Annotated[str, Option(metavar="KEY=VALUE,…", help="Labels of the slice.")] = ""
    tags: Annotated[str, Option(metavar="TAG,…", help="More network tags.")] = ""
    metadata: Annotated[str, Option(metavar="KEY=VALUE,…", help="Metadata of the slice.")] = ""
    network: Annotated[str, Option(metavar="NETWORK", help="Network of the workers.")] = ""
    subnetwork: Annotated[str, Option(metavar="SUBNETWORK", help="Its part for the workers.")] = ""
    internal_ips: Annotated[bool, Option("--internal-ips", help="No external addresses.")] = False
    data_disks: Annotated[
        list[str] | None,
        Option("--data-disk", metavar="DISK", help="projects/…/zones/…/disks/…; repeatable."),
    ] = None
    service_account: Annotated[str, Option(metavar="EMAIL", help="Account of the workers.")] = ""


DEFAULTS = RequestFlags()


def slice_request(
    toolkit: Toolkit, accelerator: AcceleratorType, name: str, flags: RequestFlags
) -> SliceRequest:
    """Return the labelled request; say its name before anything is asked of the cloud.

    Raises:
        BadInput: flags that contradict each other, or a runtime version known to leave no chip.
    """
    if flags.spot and flags.reserved:
        raise BadInput("--spot and --reserved exclude each other")
    settings = toolkit.settings
    user = settings.get("user")
    chosen = naming.check_name(name or naming.default_name(user, accelerator.name))
    request = SliceRequest(
        name=chosen,
        project=settings.require("project"),
        zone=settings.require("zone"),
        accelerator_type=accelerator.name,
        runtime_version=_runtime(accelerator, flags.runtime_version),
        provisioning="spot" if flags.spot else "reserved" if flags.reserved else "on-demand",
        network=flags.network or settings.get("network") or "default",
        subnetwork=flags.subnetwork,
        external_addresses=not flags.internal_ips,
        labels=_labels(pairs(flags.labels, "--labels")),
        tags=words(flags.tags),
        metadata=pairs(flags.metadata, "--metadata"),
        data_disks=tuple(flags.data_disks or ()),
        service_account=flags.service_account,
    )
    toolkit.console.say(
        f"slice {chosen}: {accelerator.name} in {request.zone} of project {request.project}"
    )
    return naming.labelled(request, user, secrets.token_hex(6))


def _labels(given: Mapping[str, str]) -> Mapping[str, str]:
    for key, value in given.items():
        if (naming.label(key), naming.label(value)) != (key, value):
            raise BadInput(
                f"label {key}={value} is not a label",
                why="labels are up to 63 lower-case letters, digits, hyphens and underscores",
            )
    return given


def _runtime(accelerator: AcceleratorType, wanted: str) -> str:
    bad = runtime_fits(accelerator, wanted) if wanted else None
    if bad:
        raise BadInput(bad, fix=Fix(note=f"--runtime-version {accelerator.runtime_version}"))
    return wanted or accelerator.runtime_version

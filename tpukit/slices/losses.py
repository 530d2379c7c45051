"""The errors of lost slices, and of others whose workers cannot answer."""

from __future__ import annotations

from collections.abc import Iterator

from tpukit.errors import Fix, SliceLost, TpukitError
from tpukit.google.provider import SliceProvider
from tpukit.models import Slice
from tpukit.slices import lifetime
from tpukit.slices.find import look

#: The end of the name of the default service account.
DEFAULT_ACCOUNT = "-compute@developer.gserviceaccount.com"
#: The ways to buy capacity that a create can repeat: each except the first has a flag of `up`.
REMADE = ("on-demand", "spot", "preemptible", "reserved")


def check_still_there(provider: SliceProvider, slice_: Slice) -> None:
    """Raise `SliceLost` if the slice has been lost; return if the API does not answer."""
    try:
        now = look(provider.once(), slice_)
    except TpukitError:
        return
    if now is None:
        raise gone(slice_)
    if now.lost or now.state == "DELETING":
        check_reachable(now)


def gone(slice_: Slice) -> SliceLost:
    """Return the error for a slice that no longer exists."""
    return SliceLost(f"slice {slice_.name} is gone", why="it existed a moment ago")


def loss(slice_: Slice) -> SliceLost:
    """Return the error for a preempted or terminated slice: make it again, or delete it."""
    place = (slice_.name, "--zone", slice_.zone)
    delete = remake = Fix.command("tpukit", "delete", *place)
    if slice_.provisioning in REMADE and not slice_.queued_resource:
        again = (
            "tpukit",
            "up",
            slice_.accelerator_type,
            *place,
            *remaking_flags(slice_),
            "--recreate",
        )
        note = "tpukit watch does this by itself and restarts your command"
        remake = Fix.command(*again, note=note)
    return SliceLost(
        f"slice {slice_.name} is {slice_.state}: its workers are gone",
        exists=(f"slice {slice_.name} in {slice_.zone}, {slice_.state}; it keeps its quota",),
        fix=remake,
        otherwise=None if remake is delete else delete,
    )


def remaking_flags(slice_: Slice) -> Iterator[str]:
    """Yield the flags of `up` that ask for such a slice again, with as long a life.

    Metadata is left out, because it can carry secrets.
    """
    from tpukit.accelerators import AcceleratorType, is_listed

    kind, life = slice_.accelerator_type, lifetime.asked(slice_.labels)
    usual = AcceleratorType.parse(kind).runtime_version if is_listed(kind) else ""
    account = slice_.service_account
    if slice_.reservation:
        yield from ("--reservation", slice_.reservation)
    elif slice_.provisioning != "on-demand":
        yield f"--{slice_.provisioning}"
    if slice_.api != "tpu":
        yield from ("--api", slice_.api)
    if not slice_.external_addresses:
        yield "--internal-ips"
    for name, value in {
        "runtime-version": slice_.runtime_version,
        "network": slice_.network.rpartition("/")[2],
        "ttl": life["ttl"] and f"{float(life['ttl'][:-2]) / 60:g}m",
        "idle": life["idle"] and f"{life['idle']}s",
        "max-run-duration": life["max run"] and f"{life['max run']}s",
        "purpose": life["purpose"],
        "labels": ",".join(f"{key}={value}" for key, value in slice_.labels.items() if _own(key)),
        "tags": ",".join(filter(_own, slice_.tags)),
        "subnetwork": slice_.subnetwork.rpartition("/")[2],
        "service-account": "" if account.endswith(DEFAULT_ACCOUNT) else account,
    }.items():
        if value not in ("", usual, "default"):
            yield from (f"--{name}", value)
    for disk in slice_.data_disks:
        mode = ",mode=read-only" if disk.read_only else ""
        yield from ("--data-disk", f"{disk.source}{mode}")


def _own(name: str) -> bool:
    """Return True if a label or tag is not one that tpukit makes."""
    return not name.startswith("tpukit-")


def check_reachable(slice_: Slice) -> None:
    """Raise if the workers cannot answer in the slice's state.

    Raises:
        SliceLost: it was preempted or terminated, or is being deleted.
        TpukitError: it is stopped, or it has no workers yet.
    """
    if slice_.lost:
        raise loss(slice_)
    if slice_.state == "DELETING":
        raise SliceLost(f"slice {slice_.name} is being deleted")
    if slice_.state in ("STOPPED", "STOPPING"):
        start = Fix.command("tpukit", "start", slice_.name, "--zone", slice_.zone)
        stopped = slice_.state == "STOPPED"
        raise TpukitError(f"slice {slice_.name} is {slice_.state}", fix=start if stopped else None)
    if not slice_.workers:
        raise TpukitError(
            f"slice {slice_.name} is {slice_.state} and has no workers yet",
            fix=Fix.command("tpukit", "wait", slice_.name, "--zone", slice_.zone),
        )

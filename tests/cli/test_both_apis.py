"""The same commands on both of Google's APIs for slices."""

from __future__ import annotations

import pytest
from support.emulated_workers import needs_curl

from cli.conftest import Local

pytestmark = pytest.mark.slow

ZONE = "us-east5-b"
#: The commands after the create, which print the same on both APIs.
SCRIPT = (
    ("list", "-o", "name"),
    ("ssh", "demo", "--", "echo over ssh"),
    ("run", "demo", "--", "echo worker {worker}"),
    ("update", "demo", "--update-labels", "team=vision"),
    ("list", "--label", "team=vision", "-o", "name"),
    ("list", "--columns", "name,zone,type,state,workers,capacity,owner"),
    ("firewall", "remove", "demo"),
    ("firewall", "apply", "demo"),
    ("stop", "demo"),
    ("start", "demo"),
    ("reap", "--dry-run"),
    ("run", "demo", "--", "echo again"),
    ("delete", "demo", "--yes"),
    ("describe", "demo"),
    ("list",),
)
#: The rows of `describe` that differ. Only the Cloud TPU API has health and topology, and each has
#: its own images, ids of network and addresses of workers.
DIFFERENT = {"api", "health", "topology", "runtime version", "created", "hours"}


def played(local: Local, api: str, kind: str) -> tuple[list[tuple[int, str]], dict[str, str]]:
    """Return what each command of the script printed, and the rows of `describe`."""
    extra = {"TPUKIT_APIS": "tpu,compute"}
    made = local.run("create", kind, "demo", "--zone", ZONE, "--api", api, extra=extra)
    assert (made.status, made.out) == (0, "demo\n"), made.err
    described = local.run("describe", "demo", extra=extra).out
    rows = dict(line.split("\t", 1) for line in described.splitlines())
    results = [local.run(*words, extra=extra) for words in SCRIPT]
    # Workers answer in any order.
    return [(one.status, "\n".join(sorted(one.out.splitlines()))) for one in results], rows


@pytest.mark.parametrize(("kind", "workers"), [("v6e-4", 1), ("v6e-16", 4)])
def test_a_script_prints_the_same_on_both_apis(local: Local, kind: str, workers: int) -> None:
    tpu, tpu_rows = played(local, "tpu", kind)
    compute, compute_rows = played(local, "compute", kind)
    for words, one, other in zip(SCRIPT, tpu, compute, strict=True):
        assert one == other, words
    # Not 0: the deleted slice's describe; a stop, which several workers do not have.
    failed = 1 if workers == 1 else 2
    assert [status for status, _ in tpu].count(0) == len(SCRIPT) - failed
    names = tpu_rows.keys() | compute_rows.keys()
    differ = {name for name in names if tpu_rows.get(name) != compute_rows.get(name)}
    assert differ <= {*DIFFERENT, *(f"worker {number}" for number in range(workers))}, {
        name: (tpu_rows.get(name), compute_rows.get(name)) for name in differ
    }
    assert compute_rows["api"] == "Compute Engine"


@needs_curl
def test_each_worker_of_a_group_learns_its_place_from_its_own_metadata_server(
    local: Local,
) -> None:
    extra = {"TPUKIT_APIS": "tpu,compute"}
    create = ("create", "v6e-16", "demo", "--zone", ZONE, "--api", "compute")
    assert local.run(*create, extra=extra).status == 0
    url = "http://$GCE_METADATA_HOST/computeMetadata/v1/instance/attributes"
    ask = "curl -sf -H 'Metadata-Flavor: Google'"
    names = ("agent-worker-number", "worker-network-endpoints", "accelerator-type")
    script = "; echo; ".join(f"{ask} {url}/{name}" for name in names)
    for number in range(4):
        said = local.run("run", "demo", "--worker", str(number), "--", script, extra=extra)
        assert said.out.split() == [
            *(str(number), ",".join(f"demo-w-00{one}" for one in range(1, 5)), "v6e-16")
        ], said.err
    local.run("emulator", "preempt", "demo", extra=extra)
    listed = local.run("list", "--columns", "name,state", extra=extra).out
    assert listed in ("demo\tSTOPPING\n", "demo\tSTOPPED\n")
    assert local.run("delete", "demo", "--yes", extra=extra).status == 0


@pytest.mark.parametrize(("kind", "workers"), [("v6e-1", 1), ("v6e-16", 4)])
def test_a_reservation_is_named_and_comes_back_by_its_name(
    local: Local, kind: str, workers: int
) -> None:
    extra = {"TPUKIT_APIS": "tpu,compute", "TPUKIT_ZONE": ZONE}
    create = ("create", kind, "demo", "--api", "compute", "--reservation")
    mine = f"mine-{kind}"
    missing = local.run(*create, mine, extra=extra).says(2).err
    assert f"Specified reservations [{mine}] do not exist" in missing
    own = ("reservation", mine, "--zone", ZONE, "--generation", "v6e", "--chips", "16")
    assert local.run("emulator", "add", *own, extra=extra).status == 0
    assert local.run(*create, mine, extra=extra).status == 0
    described = local.run("describe", "demo", "--json", extra=extra).document["slice"]
    assert (described["provisioning"], described["reservation"]) == ("reserved", mine)
    assert len(described["workers"]) == workers
    assert local.run(*create, mine, extra=extra).status == 0
    assert f"reservation is {mine}, not hers" in local.run(*create, "hers", extra=extra).says(5).err
    assert local.run("delete", "demo", "--yes", extra=extra).status == 0


def test_the_cloud_tpu_api_takes_a_named_reservation_through_its_queue(local: Local) -> None:
    zone = "us-central2-b"
    extra = {"TPUKIT_ZONE": zone}
    own = ("reservation", "mine", "--zone", zone, "--generation", "v4", "--chips", "16")
    assert local.run("emulator", "add", *own, extra=extra).status == 0
    made = local.run("create", "v4-8", "demo", "--reservation", "mine", extra=extra)
    assert (made.status, made.out) == (0, "demo\n"), made.err
    assert local.run("queue", "list", extra=extra).out.split("\t")[5] == "reserved"
    refused = local.run("create", "v4-8", "other", "--reservation", "hers", extra=extra).says(6)
    assert "Reservation not found" in refused.err
    assert "exists: queued resource other" in refused.err
    assert local.run("list", "-o", "name", extra=extra).out == "demo\n"
    assert local.run("delete", "demo", "other", "--yes", extra=extra).status == 0
    assert local.run("queue", "list", extra=extra).out == ""


def test_compute_engine_makes_what_the_queue_would_and_refuses_the_rest(local: Local) -> None:
    extra = {"TPUKIT_APIS": "tpu,compute"}
    place = ("--zone", ZONE, "--api", "compute")
    flex = ("create", "v6e-1", "flex", "--flex-start", "--max-run-duration", "1h", *place)
    made = local.run(*flex, extra=extra)
    assert (made.status, made.out) == (0, "flex\n"), made.err
    assert local.run("queue", "list", extra=extra).out == ""
    assert "flex-start" in local.run("list", extra=extra).out
    other = local.run("create", "v6e-1", "flex", "--zone", ZONE, "--api", "tpu", extra=extra)
    assert other.status == 5, other.err
    assert "api is compute, not tpu" in other.err
    assert local.run("delete", "flex", "--yes", extra=extra).status == 0
    for words, told in {
        ("v5litepod-16",): "cannot create v5litepod-16 through Compute Engine",
        ("v6e-1", "--reserved"): "Compute Engine needs the name of a reservation",
    }.items():
        said = local.run("create", words[0], "no", *words[1:], *place, extra=extra).says(2)
        assert told in said.err
    only = ("create", "tpu7x-8", "big", "--allow-unlisted-type", "--zone", "us-central1-c")
    assert local.run(*only, extra=extra).out == "big\n"
    assert local.run("describe", "big", extra=extra).out.count("Compute Engine") == 1
    assert local.run("delete", "big", "--yes", extra=extra).status == 0
    said = local.run("create", "v6e-1", "no", *place).says(2)
    assert "fix: tpukit config set apis tpu,compute" in said.err

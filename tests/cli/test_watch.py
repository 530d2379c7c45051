"""What `watch`, and `up --recreate`, refuse and replace before anything runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from dataclasses import replace

import pytest
from support.local_cloud import OTHER_ZONE, PROJECT, ZONE, Cloud, FakeClock
from support.processes import eventually

from cli.conftest import Run
from tpukit.cli import attendance
from tpukit.cli.global_flags import GlobalFlags
from tpukit.cli.toolkit import Toolkit
from tpukit.errors import NameTaken
from tpukit.models import SliceRequest
from tpukit.slices import lifetime, naming
from tpukit.watch import background
from tpukit.watch.saved_watches import Event, Watch, WatchFiles, WatchSpec

pytestmark = pytest.mark.process

DISK = f"projects/{PROJECT}/zones/{ZONE}/disks/data"
TRAINER = f"trainer@{PROJECT}.iam.gserviceaccount.com"


def test_a_watch_that_makes_no_sense_is_refused_before_anything_is_changed(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    prompt_cloud.tpu.create(naming.labelled(prompt_cloud.request("demo"), "ada", "n"))
    prompt_cloud.tpu.create(naming.labelled(prompt_cloud.request("hers"), "eve", "n"))
    prompt_cloud.tpu.create(prompt_cloud.request("foreign"))
    for code, words in (
        (2, ["demo"]),
        (2, ["--", "true"]),
        (2, ["Demo", "--", "true"]),
        (2, ["demo", "--max-wait", "soon", "--", "true"]),
        (2, ["demo", "--zones", "mars", "--", "true"]),
        (2, ["demo", "--to", "x", "--", "true"]),
        (2, ["demo", "--push", "/nowhere", "--", "true"]),
        (3, ["gone", "--", "true"]),
        (3, ["demo", "--stop"]),
        (3, ["demo", "--list"]),
        (5, ["hers", "--", "true"]),
        (5, ["foreign", "--", "true"]),
    ):
        run("watch", *words, environment=environment).says(code)
    assert "no slice to watch" in run("watch", environment=environment).says(2).err
    assert run("watch", "--list", "--json", environment=environment).document["watches"] == []
    assert len(prompt_cloud.nodes()) == 3
    assert prompt_cloud.calls("nodes.delete") == []


def test_a_watch_is_taken_up_by_its_name_ended_and_not_mixed_up_with_another(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    prompt_cloud.tpu.create(naming.labelled(prompt_cloud.request("demo"), "ada", "n"))
    watches = prompt_cloud.directory / "home/tpukit/state/watches"
    endpoint = environment["CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"]
    file = WatchFiles(watches, endpoint, environment["CLOUDSDK_CORE_PROJECT"]).of(ZONE, "demo")
    request: SliceRequest = prompt_cloud.request("demo")
    file.save(Watch(WatchSpec(request, run_id="one", command="train"), zone=ZONE))
    told = run("watch", "demo", "--", "other", environment=environment).says(5).err
    assert "fix: tpukit watch demo --stop" in told
    shown = run("watch", "--list", "--json", environment=environment)
    (listed,) = shown.document["watches"]
    assert (listed["state"], listed["process"], listed["run"]) == ("not running", None, "one")
    assert f"next: tpukit watch demo --zone {ZONE}" in shown.err
    with file.held():
        (listed,) = run("watch", "--list", "--json", environment=environment).document["watches"]
        assert (listed["state"], listed["process"]) == ("watching", os.getpid())
        for words in ((), ("--", "train"), ("--run-id", "two", "--", "train")):
            told = run("watch", "demo", *words, environment=environment).says(5).err
            assert "is already watched by process" in told
    assert run("delete", "demo", "--yes", environment=environment).status == 0
    (listed,) = run("watch", "--list", "--json", environment=environment).document["watches"]
    assert listed["state"] == "stopped"


def test_a_watch_that_has_ended_stays_ended(run: Run, prompt_cloud: Cloud) -> None:
    """Its name alone runs nothing again, and without the slice its command does not either."""
    environment = prompt_cloud.environment()
    watches = prompt_cloud.directory / "home/tpukit/state/watches"
    endpoint = environment["CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"]
    file = WatchFiles(watches, endpoint, environment["CLOUDSDK_CORE_PROJECT"]).of(ZONE, "demo")
    spec = WatchSpec(prompt_cloud.request("demo"), command="train")
    file.save(Watch(spec, "ended", zone=ZONE, status=0, history=(Event("ended", "status 0"),)))
    told = run("watch", "demo", environment=environment).says(2).err
    assert "the watch of slice demo has ended (ended: status 0)" in told
    run("watch", "demo", "--", "train", environment=environment).says(3)
    assert prompt_cloud.calls("nodes.create") == []


def test_reap_leaves_to_a_watch_what_that_makes_again(run: Run, prompt_cloud: Cloud) -> None:
    """As long as a process watches."""
    environment = prompt_cloud.environment()
    prompt_cloud.tpu.create(naming.labelled(prompt_cloud.request("demo"), "ada", "n"))
    eventually(lambda: prompt_cloud.tpu.get(ZONE, "demo").ready)
    prompt_cloud.change("demo", state="PREEMPTED")
    watches = prompt_cloud.directory / "home/tpukit/state/watches"
    endpoint = environment["CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"]
    file = WatchFiles(watches, endpoint, environment["CLOUDSDK_CORE_PROJECT"]).of(ZONE, "demo")
    file.save(Watch(WatchSpec(prompt_cloud.request("demo"), command="train"), zone=ZONE))
    with file.held():
        assert "its watch makes it again" in run("reap", "--yes", environment=environment).err
        assert len(prompt_cloud.nodes()) == 1
    run("reap", "--yes", environment=environment)
    assert prompt_cloud.nodes() == []


def test_capacity_that_no_create_buys_is_not_bought_on_demand_unasked(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    words = ("create", "v3-8", "demo", "--best-effort", "--source-range", "192.0.2.7/32")
    assert run(*words, environment=environment).status == 0
    told = run("watch", "demo", "--", "train", "me", environment=environment).says(2).err
    assert "was bought as best-effort" in told
    assert "fix: tpukit watch demo --on-demand -- 'train me'" in told
    words = ("up", "v3-8", "demo", "--keep", "--best-effort")
    assert "best-effort" in run(*words, environment=environment).says(2).err


def test_no_watch_of_a_slice_that_does_not_exist_is_suggested(
    run: Run, prompt_cloud: Cloud
) -> None:
    told = run("watch", "nope", environment=prompt_cloud.environment()).says(3).err
    assert "no slice nope" in told
    assert "tpukit watch" not in told


def test_a_slice_that_was_never_made_does_not_exist(run: Run, prompt_cloud: Cloud) -> None:
    prompt_cloud.fault(method="nodes.create", status="PERMISSION_DENIED", message="no")
    words = ("up", "v3-8", "demo", "--keep", "--no-firewall")
    told = run(*words, environment=prompt_cloud.environment()).says(4).err
    assert "exists:" not in told


def test_watches_of_one_name_in_two_zones_never_mix(run: Run, prompt_cloud: Cloud) -> None:
    """The delete of one ends no watch of the other, and neither file takes the other's place."""
    environment = prompt_cloud.environment()
    watches = prompt_cloud.directory / "home/tpukit/state/watches"
    endpoint = environment["CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"]
    files = WatchFiles(watches, endpoint, environment["CLOUDSDK_CORE_PROJECT"])
    for zone in (ZONE, OTHER_ZONE):
        request = naming.labelled(prompt_cloud.request("same", zone=zone), "ada", "n")
        prompt_cloud.tpu.create(request)
        files.of(zone, "same").save(Watch(WatchSpec(request, command=zone), zone=zone))
    told = run("watch", "same", environment=environment).says(2).err
    assert f"several zones are watched: {ZONE}, {OTHER_ZONE}" in told
    assert run("watch", "same", "--stop", "--zone", ZONE, environment=environment).status == 0
    assert {watch.zone: watch.open for _, watch in files.named("same")} == {
        ZONE: False,
        OTHER_ZONE: True,
    }
    files.of(ZONE, "same").save(Watch(WatchSpec(request, command=ZONE), zone=ZONE))
    words = ("delete", "same", "--zone", OTHER_ZONE, "--yes")
    assert run(*words, environment=environment).status == 0
    states = {watch.zone: watch.open for _, watch in files.named("same")}
    assert states == {ZONE: True, OTHER_ZONE: False}
    assert [watch.spec.command for _, watch in files.named("same", ZONE)] == [ZONE]
    moved = files.of(ZONE, "same")
    moved.save(Watch(WatchSpec(request, command="moved"), zone=OTHER_ZONE))
    assert files.of(ZONE, "same").path != moved.path


def test_a_delete_ends_the_watch_that_is_making_the_slice_in_another_of_its_zones(
    run: Run, prompt_cloud: Cloud
) -> None:
    """Its file still says where the slice was lost; the other watch has never been there."""
    environment = prompt_cloud.environment()
    watches = prompt_cloud.directory / "home/tpukit/state/watches"
    endpoint = environment["CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"]
    files = WatchFiles(watches, endpoint, environment["CLOUDSDK_CORE_PROJECT"])
    spec = WatchSpec(prompt_cloud.request("demo"), command="train", zones=(OTHER_ZONE,))
    file, other = files.of(ZONE, "demo"), files.of(ZONE, "other")
    file.save(Watch(spec, state="recovering", zone=ZONE))
    other.save(Watch(replace(spec, request=prompt_cloud.request("other")), zone=ZONE))
    for name in ("demo", "other"):
        request = naming.labelled(prompt_cloud.request(name, zone=OTHER_ZONE), "ada", "n")
        prompt_cloud.tpu.create(request)
    assert run("delete", "demo", "other", "--yes", environment=environment).status == 0
    assert [each.load().open for each in (file, other)] == [False, True]


def test_a_watch_is_stopped_although_its_process_ends_by_itself_meanwhile(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    toolkit = Toolkit(GlobalFlags(), environ=environment, clock=FakeClock())
    file = attendance.files(toolkit).of(ZONE, "demo")
    file.save(Watch(WatchSpec(prompt_cloud.request("demo"), command="train"), zone=ZONE))
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    with toolkit.closing, file.held():
        file.path.with_suffix(".lock").write_text(str(gone.pid))
        with pytest.raises(NameTaken, match=f"by process {gone.pid}"):
            background.stop(file, toolkit.clock)


def test_up_keep_does_not_take_the_place_of_a_watch_with_a_command(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    watches = prompt_cloud.directory / "home/tpukit/state/watches"
    endpoint = environment["CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"]
    file = WatchFiles(watches, endpoint, environment["CLOUDSDK_CORE_PROJECT"]).of(ZONE, "demo")
    watch = Watch(WatchSpec(prompt_cloud.request("demo"), command="train"), zone=ZONE)
    file.save(watch)
    prompt_cloud.fault(method="nodes.*", status="PERMISSION_DENIED", probability=1.0)
    told = run("up", "v3-8", "demo", "--keep", environment=environment).says(5).err
    assert "is already watched with another command (train)" in told
    assert file.load() == watch


def test_up_recreate_replaces_the_lost_slice_and_no_other(run: Run, prompt_cloud: Cloud) -> None:
    environment = prompt_cloud.environment()
    words = ("up", "v3-8", "demo", "--recreate", "--timeout", "2s", "--no-firewall")
    prompt_cloud.tpu.create(naming.labelled(prompt_cloud.request("demo"), "eve", "n"))
    eventually(lambda: prompt_cloud.tpu.get(ZONE, "demo").ready)
    prompt_cloud.change("demo", state="PREEMPTED")
    run(*words, environment=environment).says(5)
    assert prompt_cloud.calls("nodes.delete") == []
    prompt_cloud.change("demo", labels={naming.MANAGED: "1", naming.OWNER: "ada"})
    run(*words, environment=environment)  # no worker answers on paper
    assert len(prompt_cloud.calls("nodes.delete")) == 1
    assert prompt_cloud.tpu.get(ZONE, "demo").ready
    run(*words, environment=environment)
    assert len(prompt_cloud.calls("nodes.delete")) == 1


@pytest.mark.parametrize("days", ["2h", "20d"])
def test_the_fix_for_a_lost_slice_makes_one_that_is_like_it_and_lives_as_long(
    run: Run, prompt_cloud: Cloud, days: str
) -> None:
    environment = prompt_cloud.environment()
    given = ("--spot", "--runtime-version", "tpu-vm-base", "--ttl", days, "--purpose", "exp")
    prompt_cloud.control("POST", "catalogue/networks", {"name": "lab", "project": PROJECT})
    given += ("--labels", "team=vision,run=7", "--tags", "web", "--data-disk", DISK)
    given += ("--service-account", TRAINER)
    words = ("create", "v3-8", "demo", *given, "--network", "lab", "--internal-ips")
    made = run(*words, "--no-firewall", environment=environment)
    assert made.status == 0, made.err
    prompt_cloud.control("POST", f"nodes/{prompt_cloud.full_name('demo')}:preempt")
    told = run("wait", "demo", environment=environment).says(7).err
    (line,) = re.findall("fix: tpukit (up .*)", told)
    planned = run(*shlex.split(line), "--no-firewall", "--dry-run", environment=environment)
    assert planned.status == 0, planned.err
    before = prompt_cloud.tpu.get(ZONE, "demo")
    request = json.loads(planned.out[planned.out.index("{") : planned.out.index("\n}") + 2])
    assert lifetime.asked(request["labels"]) == lifetime.asked(before.labels)
    assert request["runtimeVersion"] == before.runtime_version
    assert {"team": "vision", "run": "7"}.items() <= request["labels"].items()
    assert "web" in request["tags"]
    assert request["serviceAccount"]["email"] == TRAINER
    assert [disk["sourceDisk"] for disk in request["dataDisks"]] == [DISK]

"""Slices waited for, updated, and deleted by pattern and by label."""

from __future__ import annotations

import threading

import pytest
from support.local_cloud import OTHER_ZONE, PROJECT, ZONE, Cloud

from cli.conftest import Local, Run
from tpukit.slices import naming
from tpukit.slices.lifetime import EXPIRES

pytestmark = pytest.mark.process


def make(cloud: Cloud, name: str, owner: str = "ada", **given: object) -> None:
    cloud.tpu.create(naming.labelled(cloud.request(name, **given), owner, "nonce"))


def names(cloud: Cloud) -> list[str]:
    return [node.rpartition("/")[2] for node in cloud.nodes()]


def test_slices_are_deleted_by_pattern_and_by_label(run: Run, prompt_cloud: Cloud) -> None:
    environment = prompt_cloud.environment()
    for name, labels in {
        "exp-1": {"team": "a"},
        "exp-2": {"team": "b"},
        "exp-3": {"team": "b"},
        "other": {"team": "b"},
        "kept": {},
    }.items():
        make(prompt_cloud, name, labels=labels)
    rates = {"TPUKIT_RATES": "v3=2.20"}
    questioned = run("delete", "exp-2", environment={**environment, **rates}).says(2).err
    assert "delete exp-2 (us-central1-a, made just now, cost 0.0" in questioned
    asked = run("delete", "exp-*", "--label", "team=b", environment=environment).says(2).err
    assert 'error: "delete these 2 slices?" needs an answer\n' in asked
    assert "why: exp-2  us-central1-a, made just now\n     exp-3  us-central1-a, made" in asked
    assert len(names(prompt_cloud)) == 5
    done = run("delete", "exp-*", "--label", "team=b", "--yes", environment=environment)
    assert sorted(done.out.split()) == ["exp-2", "exp-3"]
    assert names(prompt_cloud) == ["exp-1", "kept", "other"]
    run("delete", "kept", "ex?-*", "--yes", environment=environment)
    assert names(prompt_cloud) == ["other"]
    run("delete", "--label", "team", "--yes", environment=environment)
    assert names(prompt_cloud) == []
    for words in (["exp-*"], ["--label", "team=b"]):
        assert run("delete", *words, "--yes", environment=environment).says(3)
        assert run("delete", *words, "--yes", "--missing-ok", environment=environment).status == 0


def test_slices_of_yours_are_extended_by_pattern(run: Run, prompt_cloud: Cloud) -> None:
    environment = prompt_cloud.environment()
    for name in ("exp-1", "exp-2", "other"):
        make(prompt_cloud, name)
    make(prompt_cloud, "exp-3", owner="eve")
    done = run("extend", "exp-*", "--ttl", "3h", environment=environment)
    assert [line.split("\t")[0] for line in done.out.splitlines()] == ["exp-1", "exp-2"]
    ends = {slice_.name for slice_ in prompt_cloud.tpu.list("-").slices if EXPIRES in slice_.labels}
    assert ends == {"exp-1", "exp-2"}
    ordered = run("list", "--sort", "expires", "-o", "name", environment=environment).out.split()
    assert ordered == ["exp-1", "exp-2", "exp-3", "other"]
    run("extend", "exp-1", "--ttl", "5h", environment=environment)
    ordered = run("list", "--sort", "expires", "-o", "name", environment=environment).out.split()
    assert ordered == ["exp-2", "exp-1", "exp-3", "other"]
    told = run("extend", "none-*", "--ttl", "3h", environment=environment).says(3).err
    assert "no slice of yours matches none-*" in told


def test_slices_of_yours_are_stopped_and_started_by_pattern(run: Run, prompt_cloud: Cloud) -> None:
    environment = prompt_cloud.environment()
    for name in ("exp-1", "exp-2", "other"):
        make(prompt_cloud, name)
    make(prompt_cloud, "exp-3", owner="eve")
    rehearsed = run("stop", "exp-*", "--dry-run", environment=environment)
    assert rehearsed.out.count(":stop") == 2
    for verb, state in (("stop", "STOPPED"), ("start", "READY")):
        done = run(verb, "exp-*", environment=environment)
        assert (done.status, done.out) == (0, "exp-1\nexp-2\n")
        states = {slice_.name: slice_.state for slice_ in prompt_cloud.tpu.list("-").slices}
        assert states == {"exp-1": state, "exp-2": state, "exp-3": "READY", "other": "READY"}
        assert "no slice of yours" in run(verb, "none-*", environment=environment).says(3).err


def test_a_label_as_name_selects_the_slices_of_yours(run: Run, prompt_cloud: Cloud) -> None:
    environment = prompt_cloud.environment()
    for name, team in {"one": "a", "two": "a", "three": "b"}.items():
        make(prompt_cloud, name, labels={"team": team})
    make(prompt_cloud, "four", owner="eve", labels={"team": "a"})
    for words in (("extend", "team=a", "--ttl", "3h"), ("stop", "team=a"), ("start", "team=a")):
        done = run(*words, environment=environment)
        assert [line.split("\t")[0] for line in done.out.splitlines()] == ["one", "two"], words
    for verb in (("stop",), ("firewall", "apply"), ("ssh-config",), ("run", "--", "true")):
        words = (*verb[:1], "team=none", *verb[1:]) if verb[0] == "run" else (*verb, "team=none")
        told = run(*words, environment=environment).says(3).err
        assert "no slice of yours matches team=none" in told
    done = run("delete", "team=a", "three", "--yes", environment=environment)
    assert sorted(done.out.split()) == ["one", "three", "two"]
    assert names(prompt_cloud) == ["four"]


def test_of_several_slices_those_that_cannot_be_stopped_are_named(
    run: Run, prompt_cloud: Cloud
) -> None:
    """The others are stopped all the same."""
    environment = prompt_cloud.environment()
    for name in ("exp-1", "exp-2"):
        make(prompt_cloud, name)
    prompt_cloud.fault(method="nodes.stop", name="exp-2", status="PERMISSION_DENIED", message="no")
    done = run("stop", "exp-*", environment=environment)
    assert (done.status, done.out) == (4, "exp-1\n")
    assert "warning: slice exp-2: " in done.err


def test_nothing_of_what_fits_is_deleted_where_that_is_not_sure(
    run: Run, prompt_cloud: Cloud
) -> None:
    """Another's is among them, two have one name, nothing says which, a zone is silent."""
    environment = prompt_cloud.environment()
    make(prompt_cloud, "exp-1")
    make(prompt_cloud, "exp-2", owner="eve")
    told = run("delete", "exp-*", "--foreign", "--yes", environment=environment).says(4).err
    assert "slice exp-2 belongs to eve" in told
    make(prompt_cloud, "exp-1", zone=OTHER_ZONE)
    told = run("delete", "exp-1*", "--yes", environment=environment).says(2).err
    assert "--zone" in told
    run("delete", "--yes", environment=environment).says(2)
    run("delete", "--yes", "--label", ",", environment=environment).says(2)
    run("delete", "--yes", "--label", "", environment=environment).says(2)
    assert len(names(prompt_cloud)) == 3
    mine = ("delete", "*", "--label", "tpukit-owner=ada", "--zone", ZONE, "--yes")
    assert run(*mine, environment=environment).out == "exp-1\n"


def test_a_pattern_selects_no_slice_of_others_unless_they_are_asked_for(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    make(prompt_cloud, "exp-mine")
    make(prompt_cloud, "exp-hers", owner="eve")
    prompt_cloud.tpu.create(prompt_cloud.request("exp-colleague"))
    assert run("delete", "exp-*", "--yes", environment=environment).out == "exp-mine\n"
    assert names(prompt_cloud) == ["exp-colleague", "exp-hers"]
    told = run("delete", "exp-*", "--yes", environment=environment).says(3).err
    assert "no slice of yours matches exp-*" in told
    words = ("delete", "exp-*", "--foreign", "--force", "--yes")
    assert run(*words, environment=environment).out == "exp-colleague\nexp-hers\n"


def test_an_update_shows_what_it_changed(run: Run, prompt_cloud: Cloud) -> None:
    environment = prompt_cloud.environment()
    make(prompt_cloud, "demo", labels={"draft": "1"})
    words = ("update", "demo", "--update-labels", "team=vision", "--remove-labels", "draft")
    document = run(*words, "--add-tags", "web", "--json", environment=environment).document
    assert set(document) == {"v", "slice", "changed", "beside"}
    assert document["changed"] == ["labels", "tags"]
    assert document["slice"]["labels"]["team"] == "vision"
    assert "draft" not in document["slice"]["labels"]
    disk = f"projects/{PROJECT}/zones/{ZONE}/disks/data"
    assert run("update", "demo", "--attach-disk", disk, environment=environment).out == "demo\n"
    assert prompt_cloud.tpu.get(ZONE, "demo").data_disks[0].source == disk
    assert run("update", "demo", "--detach-disk", "data", environment=environment).status == 0
    assert prompt_cloud.tpu.get(ZONE, "demo").data_disks == ()
    for wrong in (
        ["--update-labels", "Team=1"],
        ["--update-labels", "tpukit-owner=eve"],
        ["--attach-disk", "data"],
        [],
    ):
        run("update", "demo", *wrong, environment=environment).says(2)
    make(prompt_cloud, "pod", owner="eve")
    told = run("update", "pod", "--add-tags", "web", environment=environment).says(4).err
    assert "fix: tpukit update pod --add-tags web --force" in told
    assert run("update", "pod", "--add-tags", "web", "--force", environment=environment).status == 0


def test_a_wait_for_a_slice_that_somebody_deletes_ends_once_it_is_gone(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    assert run("wait", "demo", "--for", "gone", environment=environment).out == "demo\n"
    make(prompt_cloud, "demo")
    for state, shown in (("gone", "gone"), ("stopped", "STOPPED")):
        words = ("wait", "demo", "--for", state, "--timeout", "1s")
        told = run(*words, environment=environment).says(8).err
        assert told.startswith("demo: READY\n")
        assert f"is not {shown} yet" in told
    deleting = threading.Timer(0.5, lambda: prompt_cloud.tpu.delete(ZONE, "demo"))
    deleting.start()
    done = run("wait", "demo", "--for", "gone", "--json", environment=environment)
    deleting.join()
    assert done.document == {"v": 1, "slice": None, "gone": "demo"}


@pytest.mark.journey
def test_a_wait_for_ssh_ends_once_every_worker_answered(local: Local) -> None:
    # A network without rules: the default one lets everybody in.
    assert local.run("emulator", "add", "network", "closed").status == 0
    assert local.run("create", "v3-8", "waited", "--network", "closed").status == 0
    done = local.run("wait", "waited", "--for", "ssh")
    assert done.out == "waited\n", done.err
    assert "1 of 1 workers answered" in done.err
    assert local.run("firewall", "remove", "waited").status == 0
    closed = local.run("wait", "waited", "--for", "ssh", "--timeout", "5s").says(255)
    assert "exists: slice waited" in closed.err
    assert local.run("delete", "waited", "--yes").status == 0

"""Commands on answers of the API that are odd: a field that cannot be read, a slice that is ill."""

from __future__ import annotations

from typing import Any

import pytest
from support.local_cloud import Cloud

from cli.conftest import Run
from tpukit.slices import naming

pytestmark = pytest.mark.process

WRONG: dict[str, Any] = {"serviceAccount": "somebody@example.com", "dataDisks": [None]}


@pytest.fixture
def odd(prompt_cloud: Cloud) -> Cloud:
    """A cloud with a slice `well`, and a slice `odd` of which two fields cannot be read."""
    for name in ("odd", "well"):
        prompt_cloud.tpu.create(naming.labelled(prompt_cloud.request(name), "ada", "nonce"))
    prompt_cloud.change("odd", **WRONG)
    return prompt_cloud


def test_one_unreadable_slice_is_a_row_and_hides_no_other(run: Run, odd: Cloud) -> None:
    done = run("list", environment=odd.environment())
    assert done.status == 0, done.err
    rows = [line.split("\t") for line in done.out.splitlines()]
    assert [(row[0], row[3]) for row in rows] == [("odd", "READY"), ("well", "READY")]
    told = "slice odd: the API's answer could not be read: dataDisks, serviceAccount"
    assert told in done.err


def test_json_names_what_could_not_be_read(run: Run, odd: Cloud) -> None:
    done = run("list", "--json", environment=odd.environment())
    slices = {slice_["name"]: slice_ for slice_ in done.document["slices"]}
    assert slices["odd"]["unreadable"] == ["dataDisks", "serviceAccount"]
    assert slices["well"]["unreadable"] == []


def test_an_unreadable_slice_is_described_and_deleted(run: Run, odd: Cloud) -> None:
    environment = odd.environment()
    done = run("describe", "odd", "--json", environment=environment)
    assert done.document["slice"]["state"] == "READY"
    assert run("delete", "odd", "--force", "--yes", environment=environment).status == 0
    assert odd.nodes() == [odd.full_name("well")]


def test_a_delete_by_label_takes_what_has_it_and_tells_of_what_could_not_be_read(
    run: Run, odd: Cloud
) -> None:
    odd.change("odd", labels={"team": None})
    words = ("delete", "--label", naming.MANAGED, "--force", "--yes")
    done = run(*words, environment=odd.environment())
    assert (done.status, done.out) == (0, "well\n"), done.err
    assert "slice odd: the API's answer could not be read: dataDisks, labels" in done.err
    assert odd.nodes() == [odd.full_name("odd")]


def test_reap_tells_of_what_could_not_be_read_and_leaves_it(run: Run, odd: Cloud) -> None:
    odd.control("POST", f"nodes/{odd.full_name('well')}:preempt")
    odd.change("odd", labels={"team": None}, state="PREEMPTED")
    done = run("reap", "--force", "--yes", "--json", environment=odd.environment())
    assert [row["name"] for row in done.document["deleted"]] == ["well"], done.err
    assert "slice odd: the API's answer could not be read" in done.err
    assert odd.nodes() == [odd.full_name("odd")]


def test_metadata_that_could_not_be_read_is_not_overwritten(run: Run, odd: Cloud) -> None:
    odd.change("odd", metadata={"theirs": "kept", "odd": None})
    words = ("update", "odd", "--update-metadata", "a=b", "--force")
    done = run(*words, environment=odd.environment()).says(1)
    assert "cannot change metadata of slice odd" in done.err
    assert odd.calls("nodes.patch") == []


@pytest.mark.parametrize(
    "words", [("create", "v3-8", "well", "--no-firewall"), ("wait", "well")], ids=["create", "wait"]
)
def test_a_ready_slice_that_is_not_healthy_is_warned_of(
    run: Run, odd: Cloud, words: tuple[str, ...]
) -> None:
    odd.change("well", health="UNHEALTHY_MAINTENANCE")
    done = run(*words, environment={**odd.environment(), "TPUKIT_OWNER": "ada"})
    assert (done.status, done.out) == (0, "well\n"), done.err
    assert "slice well is READY, but its health is UNHEALTHY_MAINTENANCE" in done.err


def test_a_wait_for_healthy_ends_when_the_api_says_so(run: Run, odd: Cloud) -> None:
    environment = odd.environment()
    words = ("wait", "well", "--for", "healthy", "--timeout", "2s")
    assert run(*words, environment=environment).status == 0
    odd.change("well", health="UNHEALTHY_MAINTENANCE")
    late = run(*words, environment=environment).says(8)
    assert "slice well is not HEALTHY yet" in late.err
    assert "its health is UNHEALTHY_MAINTENANCE" in late.err

"""`tpukit adopt`: slices of other tools and other owners."""

from __future__ import annotations

import pytest
from support.local_cloud import ZONE, Cloud
from support.processes import eventually

from cli.conftest import Run
from tpukit.models import QueueRequest
from tpukit.slices import lifetime, naming

pytestmark = pytest.mark.process


def made_elsewhere(cloud: Cloud, **labels: str) -> None:
    cloud.tpu.create(cloud.request("theirs", labels={"team": "vision", **labels}))
    assert cloud.tpu.get(ZONE, "theirs").state in ("CREATING", "READY")


def test_a_slice_of_another_tool_becomes_yours_after_you_have_seen_what_changes(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    made_elsewhere(prompt_cloud)
    words = ("adopt", "theirs", "--ttl", "8h", "--source-range", "192.0.2.7/32")
    told = run(*words, environment=environment)
    assert (told.status, told.out) == (2, "")
    assert "label tpukit-owner becomes ada" in told.err
    assert "adopt theirs" in told.err
    assert "needs an answer" in told.err
    assert naming.OWNER not in prompt_cloud.tpu.get(ZONE, "theirs").labels
    planned = run(*words, "--dry-run", environment=environment)
    assert "PATCH" in planned.out
    assert naming.OWNER not in prompt_cloud.tpu.get(ZONE, "theirs").labels
    done = run(*words, "--yes", environment=environment)
    assert (done.status, done.out) == (0, "theirs\n"), done.err
    slice_ = prompt_cloud.tpu.get(ZONE, "theirs")
    assert slice_.labels["team"] == "vision"
    assert naming.owner(slice_) == "ada"
    assert lifetime.EXPIRES in slice_.labels
    (rule,) = prompt_cloud.firewall.list()
    assert rule.target_tags[0] in slice_.tags
    nonce = slice_.labels[naming.NONCE]
    assert run(*words, "--yes", environment=environment).status == 0
    assert prompt_cloud.tpu.get(ZONE, "theirs").labels[naming.NONCE] == nonce


def test_another_owners_slice_needs_force(run: Run, prompt_cloud: Cloud) -> None:
    environment = prompt_cloud.environment()
    made_elsewhere(prompt_cloud, **naming.owned("bob", "nonce"))
    words = ("adopt", "theirs", "--no-firewall", "--yes")
    told = run(*words, environment=environment)
    assert told.status == 4, told.err
    assert "slice theirs belongs to bob" in told.err
    assert naming.owner(prompt_cloud.tpu.get(ZONE, "theirs")) == "bob"
    done = run(*words, "--force", environment=environment)
    assert done.status == 0, done.err
    assert "label tpukit-owner becomes ada, was bob" in done.err
    assert naming.owner(prompt_cloud.tpu.get(ZONE, "theirs")) == "ada"


@pytest.mark.parametrize("owned", [{}, naming.owned("bob", "nonce")])
def test_the_request_of_an_adopted_slice_ends_with_the_slice(
    run: Run, prompt_cloud: Cloud, owned: dict[str, str]
) -> None:
    """It never gets the new owner's label, because the API cannot change a request."""
    environment = prompt_cloud.environment()
    prompt_cloud.tpu.create_queued(QueueRequest(prompt_cloud.request("theirs", labels=owned)))
    eventually(lambda: prompt_cloud.tpu.get_queued(ZONE, "theirs").state == "ACTIVE")
    adopted = run("adopt", "theirs", "--no-firewall", "--yes", "--force", environment=environment)
    assert adopted.status == 0, adopted.err
    assert run("delete", "theirs", "--yes", environment=environment).status == 0
    assert prompt_cloud.tpu.list_queued("-").requests == ()


def test_a_lost_slice_is_not_adopted(run: Run, prompt_cloud: Cloud) -> None:
    made_elsewhere(prompt_cloud)
    prompt_cloud.change("theirs", state="PREEMPTED")
    told = run("adopt", "theirs", "--yes", environment=prompt_cloud.environment()).says(7)
    assert "PREEMPTED" in told.err


@pytest.mark.parametrize("verb", ["adopt", "extend"])
def test_the_slice_of_an_interrupted_search_is_in_use_from_then_on(
    run: Run, prompt_cloud: Cloud, verb: str
) -> None:
    """No search deletes it after that."""
    labels = {**naming.owned("ada", "nonce"), naming.SEARCH: naming.LOOKING}
    made_elsewhere(prompt_cloud, **labels)
    flags = ("--no-firewall",) if verb == "adopt" else ()
    words = (verb, "theirs", "--ttl", "8h", *flags, "--yes")
    assert run(*words, environment=prompt_cloud.environment()).status == 0
    assert prompt_cloud.tpu.get(ZONE, "theirs").labels[naming.SEARCH] == naming.FOUND

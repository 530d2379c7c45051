"""A corpus of wrong and right requests: the emulator judges each as Google's APIs document it."""

from __future__ import annotations

from collections import Counter

import pytest

from emulator.request_corpus import WORLD, right_requests, wrong_requests


@pytest.fixture
def world(api):
    for request in WORLD:
        status, answer = api.call(request.verb, request.path, request.body)
        assert status == 200, answer
    api.advance(2000)
    return api


def resources(api):
    state = api.server.service.context.state
    return [
        sorted(part)
        for part in (
            state.nodes,
            state.queued_resources,
            state.firewalls,
            state.disks,
            state.offers,
        )
    ]


@pytest.mark.slow
def test_every_wrong_request_is_refused_with_its_status_and_by_its_name(world):
    before, misjudged, count = resources(world), [], Counter()
    for wrong in wrong_requests():
        status, answer = world.call(wrong.verb, wrong.path, wrong.body)
        said = answer.get("error", {}).get("message", "")
        if status != wrong.status or wrong.word.lower() not in said.lower():
            misjudged.append((wrong.verb, wrong.path, str(wrong.body)[:200], status, said[:200]))
        count[wrong.path.split("/")[1]] += 1
    assert not misjudged, "\n".join(map(str, misjudged))
    assert count.total() >= 400, count
    assert resources(world) == before


@pytest.mark.slow
def test_every_right_request_is_accepted(world):
    misjudged, count = [], Counter()
    for right in right_requests():
        status, answer = world.call(right.verb, right.path, right.body)
        if status != 200:
            misjudged.append((right.verb, right.path, str(right.body)[:200], answer))
        count[right.path.split("/")[1]] += 1
    assert not misjudged, "\n".join(map(str, misjudged))
    assert count.total() >= 200, count

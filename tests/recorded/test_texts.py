"""Every error text that is on record, in each place where it can arrive, as a command meets it.

A file of `texts` is one text: `at` where it arrives, `status` the canonical code that comes with
it, `details` of its error document, and the class and exit code that tpukit makes of it. A new text
needs a file and nothing else.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import warm_tpukit
from support.local_cloud import OTHER_ZONE, ZONE, Cloud

pytestmark = pytest.mark.process

TEXTS = {
    path.stem: tomllib.loads(path.read_text(encoding="utf-8"))
    for path in sorted((Path(__file__).parent / "texts").glob("*.toml"))
}
CREATE = "create v3-8 demo --no-firewall"


@dataclass(frozen=True)
class Place:
    """Where a text arrives: the method and kind of the fault, the commands before, and the one."""

    method: str
    kind: str
    command: str
    before: tuple[str, ...] = ()
    calls: str = ""  #: the method that bills, or changes something, and is called once


PLACES = {
    "call": Place("nodes.create", "status", CREATE, calls="nodes.create"),
    "operation": Place("nodes.create", "operation", CREATE, calls="nodes.create"),
    "queued": Place(
        "queuedResources.create",
        "operation",
        "queue create v3-8 demo",
        calls="queuedResources.create",
    ),
    "start": Place(
        "nodes.start", "operation", "start demo", (CREATE, "stop demo"), calls="nodes.start"
    ),
    "read": Place("nodes.get", "status", f"describe demo --zone {ZONE}"),
    "compute": Place(
        "firewalls.insert",
        "status",
        "firewall apply demo --source-range 192.0.2.7/32",
        (CREATE,),
    ),
}
CASES = [(name, place) for name, text in TEXTS.items() for place in text["at"]]


def run(cloud: Cloud, line: str) -> tuple[int, dict[str, Any], str]:
    """Run a command line and return its status, its document, and what it told."""
    done = warm_tpukit.run([*line.split(), "--json"], env=cloud.environment())
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


def serve(cloud: Cloud, name: str, place: Place, **more: Any) -> None:
    text = TEXTS[name]
    given = {"message": text["text"], "status": text["status"], "details": text.get("details", [])}
    cloud.fault(method=place.method, kind=place.kind, times=50, **given, **more)


@pytest.mark.parametrize(("name", "at"), CASES, ids=[f"{name}-{at}" for name, at in CASES])
def test_a_text_decides_the_exit_code_after_a_single_call(
    prompt_cloud: Cloud, name: str, at: str
) -> None:
    place, text = PLACES[at], TEXTS[name]
    for line in place.before:
        code, _, told = run(prompt_cloud, line)
        assert code == 0, told
    serve(prompt_cloud, name, place)
    code, document, told = run(prompt_cloud, place.command)
    error = document["error"]
    assert (error["kind"], code) == (text["error"], text["exit"]), told
    assert error["why"] or code == 3, "a cause"
    assert error["fix"] or error["fix_note"], "a remedy"
    assert "could not be read" not in told
    if place.calls:
        assert len(prompt_cloud.calls(place.calls)) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name, text in TEXTS.items() if "operation" in text["at"]]
)
def test_a_search_reads_each_refusal_and_finds_the_place_that_has_room(
    prompt_cloud: Cloud, name: str
) -> None:
    refusing, roomy = [ZONE, OTHER_ZONE], "europe-west4-a"
    for zone in refusing:
        serve(prompt_cloud, name, PLACES["operation"], zone=zone)
    code, document, told = run(prompt_cloud, f"{CREATE} --zones {','.join([*refusing, roomy])}")
    assert code == 0, told
    assert document["slice"]["zone"] == roomy
    refusals = [(refusal["zone"], refusal["code"]) for refusal in document["refusals"]]
    assert refusals == [(zone, TEXTS[name]["exit"]) for zone in refusing]
    assert len(prompt_cloud.calls("nodes.create")) == 3

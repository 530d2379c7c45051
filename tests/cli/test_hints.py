"""What a user is told to type works as it stands, on the cloud that the command line had chosen."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from journeys.command_line import Tpukit

from tpukit.cli.hints import Hints
from tpukit.cli.toolkit import Flags
from tpukit.console import View
from tpukit.errors import TpukitError

LOCAL = Hints.of(Flags(local=True), {})


@pytest.mark.parametrize(
    ("text", "completed"),
    [
        ("tpukit list", "tpukit --local list"),
        ("it stays until tpukit delete demo", "it stays until tpukit --local delete demo"),
        (
            "tpukit cp a b:  or  tpukit cp b:a .",
            "tpukit --local cp a b:  or  tpukit --local cp b:a .",
        ),
        ("tpukit emulator stop", "tpukit emulator stop"),
        ("tpukit types", "tpukit types"),
        ("tpukit config explain", "tpukit config explain"),
        ("tpukit --local, or set both endpoints", "tpukit --local, or set both endpoints"),
        ("less .local/state/tpukit is/emulator.log", "less .local/state/tpukit is/emulator.log"),
    ],
)
def test_a_command_that_asks_a_cloud_says_which(text: str, completed: str) -> None:
    assert LOCAL.complete(text) == completed


def test_a_project_of_the_command_line_is_repeated_and_quoted() -> None:
    flags = Flags(local=True, project="a b")
    assert Hints.of(flags, {}).complete("tpukit list") == "tpukit --local --project 'a b' list"
    assert Hints.of(Flags(), {}).complete("tpukit list") == "tpukit list"


@pytest.mark.parametrize(
    ("environ", "repeated"),
    [
        ({"TPUKIT_LOCAL": "1"}, False),
        ({"TPUKIT_LOCAL": "0"}, True),
        # They may be an emulator's that has ended since.
        ({"CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": "http://127.0.0.1:8080/"}, True),
    ],
)
def test_what_the_environment_says_is_not_repeated(environ: dict[str, str], repeated: bool) -> None:
    assert ("--local" in Hints.of(Flags(local=True), environ).words) is repeated
    assert Hints.of(Flags(), environ).words == ""


def test_the_zone_is_repeated_where_a_command_has_none() -> None:
    hints = Hints.of(Flags(zone="us-central1-a"), {})
    assert hints.complete("tpukit logs a b") == "tpukit --zone us-central1-a logs a b"
    assert hints.complete("tpukit ssh a --zone b") == "tpukit ssh a --zone b"


def test_hints_warnings_and_errors_are_completed_and_what_happened_is_not() -> None:
    view = LOCAL.view(View({}, hint="tpukit list", warnings=["gone: tpukit list"]))
    assert (view.hint, view.warnings) == ("tpukit --local list", ("gone: tpukit --local list",))
    with pytest.raises(TpukitError) as caught, LOCAL.in_errors():
        raise TpukitError(
            "not made by tpukit itself", exists=["see tpukit list"], fix="tpukit list"
        )
    assert caught.value.what == "not made by tpukit itself"
    assert caught.value.exists == ("see tpukit --local list",)
    assert caught.value.fix == "tpukit --local list"


@pytest.fixture
def tpukit(tmp_path: Path) -> Iterator[Tpukit]:
    found = Tpukit(tmp_path)
    yield found
    found("emulator", "stop")


def typed(line: str) -> list[str]:
    """Return the words of a line as it is shown, without what is said about it."""
    words = shlex.split(line.partition("   (")[0])
    assert words.pop(0) == "tpukit"
    return words


def test_what_is_said_to_come_next_can_be_typed_as_it_stands(tpukit: Tpukit) -> None:
    tpukit.succeeds("emulator", "start", "--create-seconds", "0")
    tpukit.succeeds("--local", "create", "v3-8", "demo")
    tpukit.succeeds("--local", "stop", "demo")
    error = tpukit.ends_with(1, "--local", "ssh", "demo", "--", "true").stderr
    assert "fix: tpukit --local start demo" in error
    tpukit.succeeds(*typed(error.partition("fix: ")[2]))
    here = Tpukit(tpukit.home, {"TPUKIT_LOCAL": "1"})
    made = here.succeeds("--local", "create", "v3-8", "demo").stderr
    assert "next: tpukit up v3-8 demo" in made


def test_an_emulated_slice_stays_and_does_not_bill(tpukit: Tpukit) -> None:
    tpukit.succeeds("emulator", "start", "--realistic")
    words = ("--local", "create", "v3-8", "slow")
    status, told = tpukit.interrupted(signal.SIGINT, lambda line: "CREATING" in line, *words)
    assert status == 130, told
    assert "slow in emulator-local1-a, CREATING when last seen; it stays until" in told
    assert "bills" not in told
    tpukit.succeeds("emulator", "clock", "speed", "1000")
    tpukit.succeeds(*typed(told.partition("fix: ")[2]), "--yes")
    assert tpukit.slices("slow") == []

"""What a user is told to type works as it stands, on the cloud that the command line had chosen."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from support.command_line import Tpukit

from tpukit.cli.global_flags import GlobalFlags
from tpukit.errors import Fix


def completed(flags: GlobalFlags, line: str, environ: Mapping[str, str] | None = None) -> str:
    fix = Fix(tuple(shlex.split(line)), note="note")
    return str(flags.complete(fix, environ or {}))


def test_a_command_that_asks_a_cloud_says_which_and_any_other_is_left_alone() -> None:
    local = GlobalFlags(local=True)
    assert completed(local, "tpukit list") == "tpukit --local list"
    alone = (
        "tpukit emulator stop",
        "tpukit types",
        "tpukit config explain",
        "tpukit --local list",
        "tpukit --help",
        "tpukit cp --help",
        "gcloud config configurations list",
        "less tpukit",
    )
    assert [completed(local, each) for each in alone] == [*alone]
    assert local.complete(Fix(note="tpukit list"), {}) == Fix(note="tpukit list")


def test_a_command_of_gcloud_reaches_the_emulator_of_a_local_command_line() -> None:
    line = "gcloud compute disks delete 'a b'"
    led = shlex.split(completed(GlobalFlags(local=True), line))
    assert led == ["sh", "-c", f'eval "$(tpukit emulator env)"; {line}']
    assert completed(GlobalFlags(), line, {"TPUKIT_LOCAL": "1"}) == shlex.join(led)
    assert completed(GlobalFlags(), line) == line


def test_project_and_zone_are_repeated_and_quoted_where_the_command_has_none() -> None:
    flags = GlobalFlags(local=True, project="a b", zone="us-central1-a")
    whole = "tpukit --local --project 'a b' --zone us-central1-a"
    assert completed(flags, "tpukit list") == f"{whole} list"
    assert (
        completed(flags, "tpukit ssh a --zone b") == "tpukit --local --project 'a b' ssh a --zone b"
    )
    assert completed(flags, "tpukit list --project c") == (
        "tpukit --local --zone us-central1-a list --project c"
    )
    assert completed(GlobalFlags(), "tpukit list") == "tpukit list"


def test_a_suggested_command_says_local_though_the_environment_does() -> None:
    """Somebody may paste it into another shell, where it must not reach the real cloud."""
    local = GlobalFlags(local=True)
    # The endpoints may be those of an emulator that has ended since.
    endpoint = {"CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": "http://127.0.0.1:8080/"}
    for value in ("0", "1"):
        assert completed(local, "tpukit list", {"TPUKIT_LOCAL": value}) == "tpukit --local list"
    assert completed(GlobalFlags(), "tpukit list", {"TPUKIT_LOCAL": "1"}) == "tpukit --local list"
    assert completed(local, "tpukit list", endpoint) == "tpukit --local list"


def test_a_suggested_command_has_the_profile_of_the_flag_or_the_variable() -> None:
    work, variable = GlobalFlags(profile="work"), {"TPUKIT_PROFILE": "work"}
    for flags, environ in ((work, {}), (GlobalFlags(), variable), (work, {"TPUKIT_PROFILE": "x"})):
        assert completed(flags, "tpukit list", environ) == "tpukit --profile work list"
        line = "tpukit config set zone us-east1-d"
        assert completed(flags, line, environ) == line.replace("tpukit", "tpukit --profile work")
        alone = ("tpukit init --profile b", "tpukit config list", "tpukit explain x", "gcloud info")
        assert [completed(flags, each, environ) for each in alone] == [*alone]


def test_the_way_to_the_workers_is_repeated_where_the_command_goes_there() -> None:
    def by(line: str, *route: str) -> str:
        return str(GlobalFlags().complete(Fix(tuple(line.split())), {}, route))

    assert by("tpukit kill demo one", "--iap") == "tpukit kill demo one --iap"
    assert by("tpukit run demo -- top", "--jump", "b") == "tpukit run demo --jump b -- top"
    for line in ("tpukit ssh demo --iap", "tpukit delete demo", "tpukit list"):
        assert by(line, "--iap") == line


@pytest.fixture
def tpukit(tmp_path: Path) -> Iterator[Tpukit]:
    with Tpukit(tmp_path) as found:
        yield found


def typed(line: str) -> list[str]:
    """Return the words of a line as it is shown, without what is said about it."""
    words = shlex.split(line.partition("   (")[0])
    assert words.pop(0) == "tpukit"
    return words


@pytest.mark.journey
@pytest.mark.process
def test_what_is_said_to_come_next_can_be_typed_as_it_stands(tpukit: Tpukit) -> None:
    tpukit.succeeds("emulator", "start", "--create-seconds", "0")
    tpukit.succeeds("--local", "create", "v3-8", "demo")
    tpukit.succeeds("--local", "stop", "demo")
    error = tpukit.ends_with(1, "--local", "ssh", "demo", "--", "true").stderr
    assert "fix: tpukit --local start demo" in error
    tpukit.succeeds(*typed(error.partition("fix: ")[2]))
    tpukit.succeeds("--local", "create", "v3-8", "there", "--project", "other-project")
    told = tpukit.succeeds("--local", "list").stderr
    assert "next: tpukit --local list --project other-project" in told
    words = typed(told.partition("next: ")[2].partition("\n")[0])
    assert "there" in tpukit.succeeds(*words).stdout
    here = Tpukit(tpukit.home, {"TPUKIT_LOCAL": "1"})
    made = here.succeeds("--local", "create", "v3-8", "demo").stderr
    assert "next: tpukit --local up v3-8 demo" in made


@pytest.mark.process
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

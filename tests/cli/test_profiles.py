"""Profiles: each command uses the settings of the chosen one, and says so in what it suggests."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from support.local_cloud import OTHER_ZONE, PROJECT, ZONE, Cloud, bare_environment

from cli.conftest import Run

pytestmark = pytest.mark.process


@pytest.fixture
def environment(prompt_cloud: Cloud) -> dict[str, str]:
    """The environment of somebody with credentials, and without a project and a zone."""
    given = prompt_cloud.environment()
    del given["CLOUDSDK_CORE_PROJECT"], given["CLOUDSDK_COMPUTE_ZONE"]
    return given


def test_a_profile_is_made_shown_and_changed_apart_from_the_other_settings(
    run: Run, tmp_path: Path
) -> None:
    environment = bare_environment(tmp_path)
    work = ("--profile", "work")
    assert run("config", "set", "zone", ZONE, environment=environment).status == 0
    made = run("config", "set", "zone", OTHER_ZONE, *work, "--new", environment=environment)
    assert "config-work.toml" in made.err
    assert run("config", "get", "zone", environment=environment).out == f"{ZONE}\n"
    assert run("config", "get", "zone", *work, environment=environment).out == f"{OTHER_ZONE}\n"
    by_variable = {**environment, "TPUKIT_PROFILE": "work"}
    assert run("config", "get", "zone", environment=by_variable).out == f"{OTHER_ZONE}\n"
    listed = run("config", "list", environment=environment).out
    assert listed == f"\tzone\t{ZONE}\nwork\tzone\t{OTHER_ZONE}\n"
    completed = run("completion", "--words", "--", "list", "--profile", "", environment=environment)
    assert completed.out == "work\t\n"
    path = Path(run("config", "path", *work, environment=environment).out.strip())
    assert path.read_text() == f'zone = "{OTHER_ZONE}"\n'
    assert run("config", "unset", "zone", *work, environment=environment).status == 0
    assert run("config", "get", "zone", *work, environment=environment).status == 1
    assert run("config", "list", environment=environment).out == f"\tzone\t{ZONE}\nwork\t\t\n"


@pytest.mark.parametrize(
    "words", [("list",), ("config", "get", "zone"), ("config", "unset", "zone")]
)
def test_a_mistyped_profile_is_not_taken_for_one_without_settings(
    run: Run, environment: dict[str, str], words: tuple[str, ...]
) -> None:
    told = run(*words, "--profile", "wrok", environment=environment).says(2).err
    assert "there is no profile wrok" in told
    assert "fix: tpukit config list\n" in told
    run(*words, "--profile", "../x", environment=environment).says(2)


def test_init_makes_a_profile_and_checks_it(run: Run, environment: dict[str, str]) -> None:
    words = ("--profile", "work", "--project", PROJECT, "--zone", ZONE)
    done = run("init", *words, environment=environment)
    assert done.status == 0, done.out + done.err
    folder = Path(environment["TPUKIT_HOME"]) / "config"
    assert [path.name for path in folder.iterdir()] == ["config-work.toml"]
    assert run("list", "--profile", "work", environment=environment).status == 0
    run("list", environment=environment).says(2)


def test_a_suggested_command_repeats_the_profile(run: Run, environment: dict[str, str]) -> None:
    run("config", "set", "project", PROJECT, "--profile", "work", "--new", environment=environment)
    by_variable = {**environment, "TPUKIT_PROFILE": "work"}
    for given, words in ((environment, ("--profile", "work")), (by_variable, ())):
        told = run("describe", "nobody", *words, environment=given).says(3).err
        assert "fix: tpukit --profile work list\n" in told


def test_init_that_ends_early_leaves_no_profile(run: Run, environment: dict[str, str]) -> None:
    said = run("init", "--profile", "new", environment=environment).says(2)
    assert "or it in profile new" in said.err
    assert "gcloud" not in said.err.replace("gcloud auth", "")
    assert run("config", "list", environment=environment).out == ""


def test_a_new_profile_is_named_as_such(run: Run, environment: dict[str, str]) -> None:
    words = ("config", "set", "zone", ZONE, "--profile", "work", "--new")
    assert "a new profile" in run(*words, environment=environment).err
    assert "a new profile" not in run(*words, environment=environment).err


def test_a_misspelled_profile_is_not_made(run: Run, environment: dict[str, str]) -> None:
    set_zone = ("config", "set", "zone", ZONE)
    run(*set_zone, "--profile", "work", "--new", environment=environment)
    for given, words in (
        (environment, ("--profile", "wrok")),
        ({**environment, "TPUKIT_PROFILE": "wrok"}, ()),
    ):
        said = run(*set_zone, *words, environment=given).says(2).err
        assert "error: there is no profile wrok (did you mean work?)\n" in said
        assert f"fix: tpukit config set zone {ZONE} --profile work\n" in said
        assert f"fix: tpukit config set zone {ZONE} --new --profile wrok\n" in said
    assert run("config", "list", environment=environment).out == f"work\tzone\t{ZONE}\n"


def test_a_wrong_value_or_flag_makes_no_profile(run: Run, environment: dict[str, str]) -> None:
    made = ("--profile", "work", "--new")
    assert "not a zone" in run("config", "set", "zone", "Z", *made, environment=environment).err
    said = run("config", "set", "zone", ZONE, "--new", environment=environment).says(2).err
    assert "--new needs --profile" in said
    assert run("config", "list", environment=environment).out == ""


def test_while_init_asks_there_is_no_profile_yet(
    run: Run, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So an init that is killed leaves none either."""
    seen: list[Path] = []

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

        def readline(self, size: int = -1, /) -> str:
            seen.extend(Path(environment["TPUKIT_HOME"]).rglob("config-*"))
            return super().readline(size)

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", Terminal(f"{PROJECT}\n{ZONE}\n"))
    assert run("init", "--profile", "new", environment=environment).status == 0
    assert seen == []
    assert run("list", "--profile", "new", environment=environment).status == 0

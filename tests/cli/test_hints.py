"""A second command on workers asks the API nothing, and never believes what is no longer so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.local_cloud import bare_environment

from cli.conftest import Result, Run
from tpukit.access.hints import Hint
from tpukit.cli.global_flags import GlobalFlags
from tpukit.cli.toolkit import Toolkit
from tpukit.emulator.control_client import EmulatorClient
from tpukit.emulator.process import daemon
from tpukit.models import Slice
from tpukit.paths import Paths

pytestmark = pytest.mark.process


class Cli:
    """Command lines on an emulator with one slice of two workers, and what the emulator saw."""

    def __init__(self, run: Run, environment: dict[str, str]) -> None:
        self._run, self.environment = run, environment
        running = daemon.running(Paths.from_environment(environment).emulator)
        assert running
        self.emulator = EmulatorClient(running.url, running.token)
        self.succeeds("create", "v4-16", "demo")
        self.succeeds("firewall", "apply", "demo")

    def __call__(self, *words: str) -> Result:
        return self._run(*words, environment=self.environment)

    def succeeds(self, *words: str) -> Result:
        result = self(*words)
        assert result.status == 0, f"{words}: {result.err}"
        return result

    def asked(self, *words: str) -> list[str]:
        """Return the methods of the API that a successful command called."""
        before = len(self.emulator.log())
        self.succeeds(*words)
        return [call["method"] for call in self.emulator.log()[before:]]

    def node(self) -> str:
        (slice_,) = self.succeeds("list", "--json").document["slices"]
        return f"projects/{slice_['project']}/locations/{slice_['zone']}/nodes/demo"


@pytest.fixture
def cli(run: Run, own_emulator: dict[str, str]) -> Cli:
    return Cli(run, own_emulator)


def test_the_second_command_asks_the_api_nothing(cli: Cli, tmp_path: Path) -> None:
    assert cli.asked("run", "demo", "--", "true")
    cli.succeeds("firewall", "apply", "demo", "--jump", "demo:1")
    (tmp_path / "sent").write_text("content")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "sent").write_text("content")
    cli.succeeds("run", "demo", "--detach", "--run-id", "job", "--", "true")
    for words in (
        ("run", "demo", "--", "true"),
        ("ssh", "demo", "--worker", "1", "--", "true"),
        ("jobs", "demo"),
        ("logs", "demo", "job"),
        ("attach", "demo", "job"),
        ("cp", "sent", "demo:"),
        ("push", "demo", "tree"),
        ("run", "demo", "--jump", "demo:1", "--worker", "0", "--", "true"),
        ("kill", "demo", "job"),
    ):
        assert cli.asked(*words) == [], words


def test_without_the_need_of_an_api_none_of_its_clients_is_imported(cli: Cli) -> None:
    cli.succeeds("run", "demo", "--", "true")
    program = (
        "import sys; from tpukit.cli.main import status; code = status(sys.argv[1:]); "
        "print(code, [each for each in ('google.auth', 'requests', 'google.cloud.tpu_v2', "
        "'tpukit.google.retrying_session') if each in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "run", "demo", "--", "true"],
        env=cli.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "0 []"


def test_hints_can_be_turned_off(cli: Cli) -> None:
    cli.environment["TPUKIT_KEEP_HINTS"] = "no"
    cli.succeeds("run", "demo", "--", "true")
    assert cli.asked("run", "demo", "--", "true")
    assert not Paths.from_environment(cli.environment).hints.exists()


def test_a_slice_that_was_deleted_elsewhere_is_not_found_as_ever(cli: Cli) -> None:
    cli.succeeds("run", "demo", "--", "true")
    cli.emulator.preempt(cli.node(), vanish=True)
    cli("run", "demo", "--", "true").says(3)


def test_a_preempted_slice_is_lost_as_ever(cli: Cli) -> None:
    cli.succeeds("run", "demo", "--", "true")
    cli.emulator.preempt(cli.node())
    done = cli("run", "demo", "--", "true")
    assert done.status == 7, done.err
    assert "slice demo is PREEMPTED" in done.err


def test_a_slice_made_again_under_its_name_is_reached_and_remembered(cli: Cli) -> None:
    """Other addresses, or the old ones with other host keys, and our key not there yet."""
    before = cli.succeeds("run", "demo", "--json", "--", "hostname").document["results"]
    cli.emulator.preempt(cli.node(), vanish=True)
    cli.environment["TPUKIT_KEEP_HINTS"] = "no"  # nobody here notices that it is another one
    cli.succeeds("create", "v4-16", "demo")
    cli.succeeds("firewall", "apply", "demo")
    del cli.environment["TPUKIT_KEEP_HINTS"]
    after = cli.succeeds("run", "demo", "--json", "--", "hostname").document["results"]
    assert len(after) == 2
    assert {result["stdout"] for result in before}.isdisjoint(result["stdout"] for result in after)
    assert cli.asked("run", "demo", "--", "true") == []


def test_a_second_slice_of_the_name_elsewhere_is_not_passed_over(cli: Cli) -> None:
    cli.succeeds("run", "demo", "--", "true")
    cli.succeeds("create", "v4-8", "demo", "--zone", "us-central2-b")
    assert "exists in several zones" in cli("run", "demo", "--", "true").says(2).err


def test_a_worker_of_which_the_hint_knows_nothing_is_asked_for(cli: Cli) -> None:
    cli.succeeds("run", "demo", "--", "true")
    cli("run", "demo", "--worker", "5", "--", "true").says(2)


def test_a_hint_that_cannot_be_written_fails_no_command(cli: Cli) -> None:
    hints = Paths.from_environment(cli.environment).hints
    hints.write_text("in the way")
    cli.succeeds("run", "demo", "--", "true")
    cli.succeeds("run", "demo", "--", "true")


def test_hints_are_of_one_project_of_one_api(tmp_path: Path) -> None:
    def recalled(endpoint: str, project: str) -> Hint | None:
        environ = {**bare_environment(tmp_path), "TPUKIT_TPU_ENDPOINT": endpoint}
        environ["TPUKIT_COMPUTE_ENDPOINT"] = endpoint
        hints = Toolkit(GlobalFlags(project=project), environ=environ).slices.hints
        if (endpoint, project) == ("https://tpu.example", "demo-project"):
            hints.keep(Hint(Slice("demo", project, "z", "v3-8", "r", "READY"), {}, everywhere=True))
        return hints.recall("demo", "")

    assert recalled("https://tpu.example", "demo-project")
    assert not recalled("https://other.example", "demo-project")
    assert not recalled("https://tpu.example", "other-project")

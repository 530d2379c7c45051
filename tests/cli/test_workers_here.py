"""The verbs that reach workers, run in this process against an emulator of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Run

pytestmark = pytest.mark.process


def test_a_slice_runs_commands_jobs_and_copies(
    run: Run, own_emulator: dict[str, str], tmp_path: Path
) -> None:
    """One slice of two workers from its creation to its end, each verb judged by its answer."""

    def call(*words: str) -> Any:
        return run(*words, environment=own_emulator)

    assert call("create", "v4-16", "demo").status == 0
    assert call("firewall", "apply", "demo").status == 0
    both = call("run", "demo", "--json", "--", "echo $TPUKIT_WORKER").document["results"]
    assert [result["stdout"] for result in both] == ["0\n", "1\n"]
    assert call("run", "demo", "--", "exit $TPUKIT_WORKER").status == 1
    assert call("ssh", "demo", "--worker", "1", "--json", "--", "exit 7").status == 7

    started = call(
        "run", "demo", "--detach", "--run-id", "job", "--json", "--", "echo line; exit 3"
    )
    assert started.document["started"]["run"] == "job"
    attached = call("attach", "demo", "job")
    assert (attached.status, attached.out.count("line")) == (3, 2)
    assert call("logs", "demo", "job").out.count("line") == 2
    assert "job" in call("jobs", "demo").out
    assert call("kill", "demo", "job").status == 0

    (tmp_path / "sent").write_text("content")
    assert call("cp", str(tmp_path / "sent"), "demo:sent").status == 0
    shown = call("run", "demo", "--json", "--", "cat sent").document["results"]
    assert [result["stdout"] for result in shown] == ["content", "content"]
    assert call("ssh-config", "demo").status == 0
    assert call("delete", "demo", "--yes").status == 0

"""The agent reaches a worker once, runs on the oldest Python, and says what a worker lacks."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from support.agent_program import agent_words, ask_agent
from support.local_worker import LocalConnection, LocalWorker, seconds

from tpukit.errors import TpukitError
from tpukit.ssh import agent_client
from tpukit.ssh.target import Completed


def hold(worker: LocalWorker) -> None:
    agent_client.ask(
        LocalConnection(worker), "hold_lock", {"path": "a.lock"}, "no lock", deadline=seconds(60)
    )


def test_the_agent_is_sent_once_and_again_if_it_is_gone(tmp_path: Path) -> None:
    worker = LocalWorker(tmp_path)
    (tmp_path / ".tpukit/venvs").mkdir(parents=True)  # else the end of a lock leaves nothing there
    hold(worker)
    assert len(worker.commands) == 3
    hold(worker)
    assert len(worker.commands) == 4
    (archive,) = (tmp_path / ".tpukit/agent").iterdir()
    assert (archive.name, archive.stat().st_mode & 0o777) == (agent_client.archive_name(), 0o600)
    archive.unlink()
    hold(worker)
    assert len(worker.commands) == 7


def test_an_archive_that_arrives_in_part_is_not_kept_and_runs_from_memory(tmp_path: Path) -> None:
    worker = LocalWorker(tmp_path, environment={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"})
    program = tmp_path / "bin/cat"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexec head -c 100\n")
    program.chmod(0o755)
    (tmp_path / ".tpukit/venvs").mkdir(parents=True)  # else the end of a lock leaves nothing there
    hold(worker)
    assert list((tmp_path / ".tpukit/agent").iterdir()) == []


def test_a_request_that_is_cut_short_does_nothing(tmp_path: Path) -> None:
    words = agent_words(tmp_path, "hold_lock")
    done = subprocess.run(words, input=b'{"path": "a.lock"}', capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (75, b"")
    assert not (tmp_path / "a.lock").exists()


def test_a_worker_without_python3_says_so_in_a_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "cat", "mkdir", "mv", "rm", "wc", "find", "printf"):
        (folder / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    worker = LocalWorker(tmp_path, environment={"PATH": str(folder)})
    with pytest.raises(TpukitError, match="has no python3, which tpukit's agent needs") as caught:
        hold(worker)
    assert caught.value.fix.note == "install python3 there; ssh and run work without it"


def test_a_python3_without_its_standard_library_is_named(tmp_path: Path) -> None:
    """Debian's python3-minimal: zipimport and sys are there, json is not."""
    words = agent_words(tmp_path, "hold_lock")
    hidden = "import sys; sys.modules['json'] = None; import runpy; sys.argv = sys.argv[1:]; "
    hidden += "sys.path.insert(0, sys.argv[0]); runpy.run_path(sys.argv[0], run_name='__main__')"
    done = subprocess.run(
        [*words[:3], "-c", hidden, *words[3:]], input=b"{}\n", capture_output=True, check=False
    )
    assert done.returncode == 1
    assert b"lacks its standard library" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("printed", "message"),
    [
        ("tpukit-agent {", "could not lock"),
        ("tpukit-agent {]}", "not JSON"),
        ('tpukit-agent {"size": "x"}', "without a valid size"),
        ('tpukit-agent {"size": true}', "without a valid size"),
        ("", "could not lock"),
    ],
)
def test_an_answer_of_another_form_is_an_error_of_that_worker(printed: str, message: str) -> None:
    done = Completed(0, f"\n{printed}\n".encode(), b"")
    with pytest.raises(TpukitError, match=message):
        agent_client.answer("worker 0", done, "could not lock").number("size")


def runs(python: str) -> bool:
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def test_the_agent_runs_on_the_oldest_python(tmp_path: Path) -> None:
    """CI has 3.8 rarely; scripts/check reads the sources for what 3.8 lacks in any case."""
    own = Path("~/.pyenv/versions").expanduser().glob("3.8*/bin/python3.8")
    candidates = [*map(str, own), *filter(None, [shutil.which("python3.8")])]
    # pyenv's shim exists for versions that it does not run.
    oldest = next((python for python in candidates if runs(python)), None)
    if not oldest:
        pytest.skip("there is no python3.8: the agent was NOT run on it, only read")
    done = ask_agent(tmp_path, "hold_lock", {"path": "a.lock"}, python=oldest)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout.split(b"tpukit-agent ")[1]) == {"locked": True}

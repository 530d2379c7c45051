"""The agent reaches a worker once, runs on the oldest Python, and says what a worker lacks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
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
    (folder,) = (tmp_path / ".tpukit/agent").iterdir()
    program = tmp_path / agent_client.program()
    assert (program.parent, program.stat().st_mode & 0o777) == (folder, 0o600)
    program.unlink()
    hold(worker)
    assert len(worker.commands) == 7


def test_its_files_are_compiled_once_and_not_by_root(tmp_path: Path) -> None:
    worker = LocalWorker(tmp_path)
    (tmp_path / ".tpukit/venvs").mkdir(parents=True)
    hold(worker)
    folder = (tmp_path / agent_client.program()).parent
    (compiled,) = folder.glob("tpukit/agent/__pycache__/main.*.pyc")
    before = compiled.stat()
    hold(worker)
    assert (compiled.stat().st_ino, compiled.stat().st_mtime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
    )
    if os.geteuid():
        pytest.skip("only root can work for the owner of these files")
    shutil.rmtree(compiled.parent)
    os.chown(folder, 65534, -1)
    hold(worker)
    assert not compiled.parent.exists()


def test_two_may_send_it_at_once_and_a_part_that_was_left_is_replaced(tmp_path: Path) -> None:
    words = [sys.executable, "-I", "-S", "-c", agent_client._UNPACK, "agent"]
    folder = tmp_path / "agent"
    for left in (folder, folder / "tpukit"):
        shutil.rmtree(folder, ignore_errors=True)
        left.mkdir(parents=True)
        senders = [subprocess.Popen(words, stdin=subprocess.PIPE, cwd=tmp_path) for _ in range(2)]
        for sender in senders:
            sender.communicate(agent_client.archive(), timeout=60)
        assert [sender.returncode for sender in senders] == [0, 0]
        assert [path.name for path in tmp_path.iterdir()] == ["agent"]
        assert (folder / "tpukit/agent/main.py").exists()


def test_an_archive_that_arrives_in_part_is_not_kept_and_runs_from_memory(tmp_path: Path) -> None:
    worker = LocalWorker(tmp_path, environment={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"})
    program = tmp_path / "bin/python3"
    program.parent.mkdir()
    own = sys.executable
    program.write_text(
        f'#!/bin/sh\ncase $* in *zipfile*) head -c 100 | {own} "$@" ;; *) exec {own} "$@" ;; esac\n'
    )
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

"""Programs reach a worker whatever shell its user logs in with."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tpukit.jobs.shell_environment import launch
from tpukit.ssh.programs import program_text, shell_line
from tpukit.text import quote

#: What one of them takes for more than itself: quotes, history, variables, ends of lines.
WORDS = (
    "it's",
    '"! !! !x $HOME $(id) `id` %s %%',
    "\\\\ \\' \\n \\c \\0",
    "two\nlines\n",
    "",
    "ä €",
    "*?[a-z]{a,b}~#;&|<>",
)


@pytest.fixture(params=["sh", "bash", "dash", "zsh", "csh", "tcsh", "fish"])
def shell(request: pytest.FixtureRequest) -> str:
    path = shutil.which(request.param)
    if not path:
        pytest.skip(f"{request.param} is not installed: what it does with our lines is NOT checked")
    return path


def test_every_login_shell_hands_on_words_and_input(shell: str) -> None:
    line = shell_line("printf '[%s]' \"$@\"\nif :; then\n    cat\nfi\nexit 3\n", WORDS)
    done = subprocess.run(
        [shell, "-c", line], input=b"input", capture_output=True, check=False, env={"HOME": "/x"}
    )
    assert done.stdout.decode() == "".join(f"[{word}]" for word in WORDS) + "input", done.stderr
    assert (done.returncode, done.stderr) == (3, b"")


def test_every_login_shell_runs_words_exactly_as_they_are(shell: str) -> None:
    """csh alone cannot have a line's end in a word."""
    words = [word for word in WORDS if not (shell.endswith("csh") and "\n" in word)]
    line = quote(["printf", "[%s]", *words])
    done = subprocess.run([shell, "-c", line], capture_output=True, check=False, env={"HOME": "/x"})
    assert done.stdout.decode() == "".join(f"[{word}]" for word in words), done.stderr


def test_a_failure_of_the_shell_does_not_show_the_whole_program(shell: str) -> None:
    line = shell_line('# a comment\nexec no-such-program "$@"\n', ["a word"])
    done = subprocess.run([shell, "-c", line], capture_output=True, check=False, env={"HOME": "/x"})
    assert done.returncode == 127
    assert done.stderr.startswith(b"tpukit: ")
    assert done.stderr.rstrip().endswith(b"not found")
    assert len(done.stderr) < 80


def test_bashrc_runs_once_before_a_command(tmp_path: Path) -> None:
    """sshd's bash reads it, and the command's, which is of the same session, does not."""
    bash = shutil.which("bash")
    if not bash:
        pytest.skip("bash is not installed: how often .bashrc runs is NOT checked")
    (tmp_path / ".bashrc").write_text("echo greetings; export FROM_IT=exported\n")
    variables = {"HOME": str(tmp_path), "SHELL": bash, "SSH_CLIENT": "127.0.0.1 1 22"}
    program = program_text("jobs/run.sh") + launch("echo $FROM_IT", {})
    done = subprocess.run(
        [bash, "-c", shell_line(program, ["mark"])],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"], **variables},
    )
    assert done.stdout == "greetings\nexported\n"

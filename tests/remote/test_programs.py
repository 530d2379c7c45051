"""Programs reach a worker whatever shell its user logs in with."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tpukit.remote.programs import shell_line

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


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "zsh", "csh", "tcsh", "fish"])
def test_every_login_shell_hands_on_words_and_input(shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed: what it does with our programs is NOT checked")
    line = shell_line("printf '[%s]' \"$@\"\nif :; then\n    cat\nfi\nexit 3\n", WORDS)
    done = subprocess.run(
        [shell, "-c", line], input=b"input", capture_output=True, check=False, env={"HOME": "/x"}
    )
    assert done.stdout.decode() == "".join(f"[{word}]" for word in WORDS) + "input", done.stderr
    assert (done.returncode, done.stderr) == (3, b"")

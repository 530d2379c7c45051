"""The agent as a worker runs it, without a connection."""

from __future__ import annotations

import atexit
import compileall
import io
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tpukit.ssh import agent_client
from tpukit.ssh.agent_client import AgentAnswer


def put_agent(home: Path) -> Path:
    """Keep the agent in a home folder, as a worker does that was sent it; return its program."""
    program = home / agent_client.program()
    if not program.exists():
        program.parent.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(_compiled_agent(), program.parent)
    return program


@cache
def _compiled_agent() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="tpukit-agent-"))
    atexit.register(shutil.rmtree, folder)
    with zipfile.ZipFile(io.BytesIO(agent_client.archive())) as archive:
        archive.extractall(folder)
    compileall.compile_dir(folder, quiet=1)
    return folder


def agent_words(
    home: Path, verb: str, *, emulated: bool = True, python: str = sys.executable
) -> list[str]:
    """Return the command that does `verb` for a home folder; the agent is put there."""
    program = put_agent(home)
    folder, temporary = str(home / ".tpukit"), str(home / "tmp")
    marked = "8" if emulated else ""
    return [python, "-I", "-S", str(program), folder, temporary, marked, verb]


def ask_agent(
    home: Path, verb: str, request: Mapping[str, Any], *, stdin: bytes = b"", **how: Any
) -> subprocess.CompletedProcess[bytes]:
    """Have the agent do `verb`, and return how that ended."""
    given = json.dumps(request).encode() + b"\n" + stdin
    words = agent_words(home, verb, **how)
    environment = {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin"}
    return subprocess.run(words, input=given, capture_output=True, check=False, env=environment)


def answers(done: subprocess.CompletedProcess[bytes]) -> list[AgentAnswer]:
    """Return what the agent answered."""
    assert (done.returncode, done.stderr) == (0, b"")
    return agent_client.answers_in("worker 0", done.stdout)

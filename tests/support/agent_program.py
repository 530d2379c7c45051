"""The agent as a worker runs it, without a connection."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpukit.ssh import agent_client
from tpukit.ssh.agent_client import AgentAnswer


def put_agent(home: Path) -> Path:
    """Keep the agent in a home folder, as a worker does that was sent it; return its file."""
    archive = home / ".tpukit/agent" / agent_client.archive_name()
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        archive.write_bytes(agent_client.archive())
    return archive


def agent_words(
    home: Path, verb: str, *, emulated: bool = True, python: str = sys.executable
) -> list[str]:
    """Return the command that does `verb` for a home folder; the archive is put there."""
    archive = put_agent(home)
    folder, temporary = str(home / ".tpukit"), str(home / "tmp")
    marked = "8" if emulated else ""
    return [python, "-I", "-S", str(archive), folder, temporary, marked, verb]


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

"""The client of tpukit's agent, which works on a worker if a line of shell is not enough.

A worker gets the files of `tpukit/agent` once, as an archive, and keeps them in a folder named by
their digest. There Python compiles a file once, and not for each question.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import resources
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from tpukit.clock import Deadline
from tpukit.errors import Fix, TpukitError
from tpukit.ssh.programs import shell_line
from tpukit.ssh.target import Completed
from tpukit.ssh.worker_files import ROOT, shell_word
from tpukit.text import one_line, quote

if TYPE_CHECKING:
    from pydantic import BaseModel

    from tpukit.ssh.channel import OnOutput
    from tpukit.ssh.client import Connection

Value = TypeVar("Value")
Model = TypeVar("Model", bound="BaseModel")
#: The user of the agent: the login's, root if sudo needs no password, or always root.
Root = Literal["no", "if possible", "yes"]
#: The statuses of a worker that has no python3, and of one that does not have the agent.
_NO_PYTHON, _ABSENT = 127, 69
#: The beginning of an answer, and the pattern of a whole one.
ANSWERS = b"tpukit-agent "
_ANSWER = re.compile(rb"^tpukit-agent (\{.*\})$", re.MULTILINE)
#: Agents that are older than so many days are removed when another one is sent.
_KEPT_DAYS = 30
#: The most seconds to send the agent and unpack it.
_STORE_SECONDS = 60.0
_MOST = 1 << 53
#: Root may be unable to read the user's home folder, if that is on NFS.
_SUDO = {
    "no": "",
    "if possible": 'if sudo -n test -r "${agent:-/}" 2>/dev/null; then set -- sudo -n; fi\n',
    "yes": "set -- sudo -n\n",
}
_START = """\
agent=$HOME/{program}
[ -f "$agent" ] || {absent}
set --
{sudo}set -- "$@" python3 -I -S {run} "$tpukit" "${{TMPDIR:-/tmp}}"
exec "$@" "${{TPUKIT_EMULATED_DEVICES:-}}" {verb}
"""
_LOOK = f"""\
command -v python3 >/dev/null || exit {_NO_PYTHON}
[ -f "$HOME/$1" ] || exit {_ABSENT}
"""
#: Runs an archive that comes on standard input, before the request, for a disk without room.
_FROM_MEMORY = """\
import os, runpy, sys
agent = os.memfd_create("agent")
with open(agent, "wb", closefd=False) as file:
    file.write(sys.stdin.buffer.read({size}))
runpy.run_path("/proc/self/fd/%d" % agent, run_name="__main__")
"""
_STORE = """\
umask 077
mkdir -p "$tpukit/agent" && cd "$tpukit/agent" && exec python3 -I -S -c {unpack} "$1"
"""
#: Unpacks an archive that comes on standard input. Two of them may work at once.
_UNPACK = f"""\
import io, os, shutil, sys, tempfile, time, zipfile
name, new = sys.argv[1], tempfile.mkdtemp(dir=".")
try:
    with zipfile.ZipFile(io.BytesIO(sys.stdin.buffer.read())) as archive:
        archive.extractall(new)
    try:
        os.rename(new, name)
    except OSError:
        if not os.path.exists(name + "/__main__.py"):  # a part of it was left
            shutil.rmtree(name)
            os.rename(new, name)
finally:
    shutil.rmtree(new, ignore_errors=True)
for old in os.listdir():
    try:
        if os.path.getmtime(old) < time.time() - {_KEPT_DAYS} * 86400:
            shutil.rmtree(old)
    except OSError:
        pass
"""
_MAIN = """\
import os, sys
folder = os.path.dirname(__file__)
sys.path.insert(0, folder)
# Root leaves no compiled files that the folder's owner could not remove.
sys.dont_write_bytecode = os.stat(folder).st_uid != os.geteuid()
try:
    from tpukit.agent.main import main
except ImportError as error:
    sys.exit("python3 on this worker lacks its standard library (%s):"
             " sudo apt-get install --yes python3" % error)
main()
"""


class AgentAnswer:
    """An answer of the agent. Reading a missing or mistyped field raises `TpukitError`."""

    def __init__(self, label: str, fields: Mapping[str, Any]) -> None:
        self._label, self._fields = label, fields

    def text(self, name: str) -> str:
        """Return a field that is text."""
        return self._get(name, str)

    def number(self, name: str) -> int:
        """Return a field that is an integer of at most 53 bits."""
        value = self._get(name, int)
        if abs(value) > _MOST:
            raise self._odd(name)
        return value

    def seconds(self, name: str) -> float:
        """Return a field that is a floating-point number of seconds."""
        value = self._get(name, float)
        if not abs(value) <= _MOST:
            raise self._odd(name)
        return value

    def flag(self, name: str) -> bool:
        """Return a field that is true or false."""
        return self._get(name, bool)

    def texts(self, name: str) -> list[str]:
        """Return a field that is a list of texts."""
        values = self._get(name, list)
        if not all(isinstance(value, str) for value in values):
            raise self._odd(name)
        return values

    def rows(self, name: str) -> list[AgentAnswer]:
        """Return a field that is a list of objects."""
        values = self._get(name, list)
        if not all(isinstance(value, dict) for value in values):
            raise self._odd(name)
        return [AgentAnswer(self._label, value) for value in values]

    def model(self, kind: type[Model]) -> Model:
        """Return the whole answer as a model; raise `TpukitError` if it is invalid."""
        try:
            return kind.model_validate(self._fields)
        except ValueError as error:
            what = f"{self._label} gave an invalid answer"
            raise TpukitError(what, reason=one_line(str(error))[:200]) from error

    def has(self, name: str) -> bool:
        """Return True if the field exists and is not null."""
        return self._fields.get(name) is not None

    def _get(self, name: str, kind: type[Value]) -> Value:
        value = self._fields.get(name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self._odd(name)
        return value

    def _odd(self, name: str) -> TpukitError:
        shown = one_line(json.dumps(self._fields))[:200]
        return TpukitError(f"{self._label} gave an answer without a valid {name}", reason=shown)


@cache
def _sources() -> Mapping[str, str]:
    sources = {"__main__.py": _MAIN, "tpukit/__init__.py": ""}
    for folder in ("agent", "agent/system"):
        for file in resources.files("tpukit").joinpath(folder).iterdir():
            if file.name.endswith((".py", ".sh")):
                sources[f"tpukit/{folder}/{file.name}"] = file.read_text("utf-8")
    return sources


@cache
def archive() -> bytes:
    """Return the archive that a worker unpacks."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archived:
        for name, text in _sources().items():
            archived.writestr(name, text)
    return packed.getvalue()


@cache
def digest() -> str:
    """Return the name of the agent's folder on a worker: the same for the same files."""
    return hashlib.sha256(json.dumps(_sources(), sort_keys=True).encode()).hexdigest()[:32]


def program() -> str:
    """Return the path of the agent's program on a worker, below the home folder."""
    return f"{ROOT}/agent/{digest()}/__main__.py"


def start_line(verb: str, root: Root = "no", in_memory: bool = False) -> str:
    """Return the shell line that starts the agent, in any login shell."""
    run, absent = '"$agent"', f"exit {_ABSENT}"
    if in_memory:
        run = "-c " + quote([_FROM_MEMORY.format(size=len(archive()))])
        absent = "agent="
    given = {"run": run, "absent": absent, "sudo": _SUDO[root], "verb": verb}
    return shell_line(_START.format(program=program(), **given))


def job_command(verb: str, request: Mapping[str, Any], python: str) -> str:
    """Return the shell command of a job that makes a request to the agent on the worker.

    The interpreter `python` is a shell word. The request is visible in listings of jobs.
    """
    given, agent = quote([json.dumps(request)]), shell_word(program())
    return f"echo {given} | {python} -I -S {agent} {shell_word(ROOT)} /tmp 0 {verb}"


def become(verb: str, request: Mapping[str, Any]) -> str:
    """Return the POSIX shell text that becomes the agent, which must be on the worker, in a run."""
    start = f"exec python3 -I -S {shell_word(program())} {shell_word(ROOT)}"
    start += ' "${TMPDIR:-/tmp}" "${TPUKIT_EMULATED_DEVICES:-}"'
    return f"{start} {verb} <<'END'\n{json.dumps(request)}\nEND\n"


def ensure(connection: Connection, *, deadline: Deadline) -> None:
    """Send the agent to the worker unless it is there, for a command that becomes it.

    Raises `TpukitError` if the worker has no python3 or cannot keep the agent, and what
    `Connection.run` raises.
    """
    done = connection.run(shell_line(_LOOK, [program()]), deadline=deadline)
    if done.status == _NO_PYTHON:
        raise _no_python(connection.label)
    if done.status == _ABSENT and not _store(connection, deadline):
        raise TpukitError(f"{connection.label} cannot keep tpukit's agent: its disk may be full")


def run(
    connection: Connection,
    verb: str,
    request: Mapping[str, Any],
    *,
    deadline: Deadline,
    stdin: Callable[[], Iterable[bytes]] | None = None,
    on_output: OnOutput | None = None,
    keep: int = 4 << 20,
    root: Root = "no",
) -> Completed:
    """Have the agent do something, and return how it ended. It is sent if it is not there yet.

    A worker that cannot keep it runs it from memory. `stdin` returns what follows the request on
    standard input. It is called again if the agent has to be sent.

    Raises `TpukitError` if the worker has no python3, and what `Connection.run` raises.
    """
    line = json.dumps(request).encode() + b"\n"

    def start(in_memory: bool = False) -> Completed:
        head = archive() + line if in_memory else line
        return connection.run(
            start_line(verb, root, in_memory),
            stdin=chain([head], stdin()) if stdin else head,
            on_output=on_output,
            deadline=deadline,
            keep=keep,
        )

    done = start()
    if done.status == _ABSENT:
        done = start(in_memory=not _store(connection, deadline))
    if done.status == _NO_PYTHON:
        raise _no_python(connection.label)
    return done


def _no_python(label: str) -> TpukitError:
    fix = Fix(note="install python3 there; ssh and run work without it")
    return TpukitError(f"{label} has no python3, which tpukit's agent needs", fix=fix)


def ask(
    connection: Connection,
    verb: str,
    request: Mapping[str, Any],
    failure: str,
    *,
    deadline: Deadline,
    root: Root = "no",
) -> AgentAnswer:
    """Have the agent do something, and return its answer.

    Raises `TpukitError` (`failure`, and the end of stderr) if it failed or did not answer, and as
    `run` does.
    """
    done = run(connection, verb, request, deadline=deadline, root=root)
    return answer(connection.label, done, failure)


def answer(label: str, done: Completed, failure: str) -> AgentAnswer:
    """Return the last answer on standard output.

    Raises `TpukitError` (`failure`, and the end of stderr) if the agent failed or did not answer.
    """
    answers = _ANSWER.findall(done.stdout)
    if not done.ok or not answers:
        raise TpukitError(failure, reason=done.reason)
    return parsed(label, answers[-1])


def answers_in(label: str, output: bytes) -> list[AgentAnswer]:
    """Return all answers in the output of a verb so far; raise the errors of `parsed`."""
    return [parsed(label, text) for text in _ANSWER.findall(output)]


def parsed(label: str, text: bytes) -> AgentAnswer:
    """Return the answer in a JSON text; raise `TpukitError` if the text is invalid."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise TpukitError(f"{label} gave an answer that is not JSON", reason=one_line(text[:200]))
    return AgentAnswer(label, fields)


def _store(connection: Connection, deadline: Deadline) -> bool:
    """Return True if the worker keeps the agent from now on."""
    line = shell_line(_STORE.format(unpack=quote([_UNPACK])), [digest()])
    limit = deadline.within(min(deadline.remaining(), _STORE_SECONDS))
    return connection.run(line, stdin=archive(), deadline=limit).ok

"""What a worker said in the smoke test, read without trusting it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tpukit.text import one_line, sanitize

_MARK = b"TPUKIT-SMOKE "
#: How Python's faulthandler begins the traceback of a program that it ends for taking too long.
_TIMEOUT = "Timeout ("
_TAIL_LINES, _LINE_LENGTH = 15, 400

Word = Annotated[str, Field(max_length=100)]
Count = Annotated[int, Field(ge=0, le=1 << 20)]


class Answer(BaseModel):
    """The JSON document of `programs/smoke.py`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    framework: Word
    versions: Annotated[dict[Word, Word], Field(max_length=20)]
    emulated: Count
    platform: Word
    device_kind: Word
    devices: Count
    global_devices: Count
    process: Count
    processes: Count
    matmuls: Annotated[tuple[float, ...], Field(max_length=4096)]
    global_sum: float
    numbers_hold: bool
    seconds: float

    @property
    def version(self) -> str:
        return one_line(self.versions.get(self.framework, ""))


@dataclass(frozen=True)
class Observation:
    """How one worker's part ended: its streams and exit status, or why there are none.

    `fault` says in words what came instead of an exit status; `waiting` that this worker may only
    have waited for another one.
    """

    worker: int
    emulated_devices: int = 0
    status: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    fault: str = ""
    waiting: bool = False
    seconds: float = 0.0

    @property
    def timed_out(self) -> bool:
        """Whether the program ended itself because its time was over."""
        lines = sanitize(self.stderr).splitlines()
        return any(line.startswith(_TIMEOUT) for line in lines)


def read_answer(observation: Observation) -> Answer | str:
    """Return the one answer in a worker's output, or what is wrong with it."""
    found = [line for line in observation.stdout.splitlines() if line.startswith(_MARK)]
    if not found and observation.timed_out:
        return f"no answer within {observation.seconds:.0f} s; it hung at:"
    if not found:
        return f"the program gave no answer and ended with status {observation.status}"
    if len(found) > 1:
        return f"the program gave {len(found)} answers"
    try:
        return Answer.model_validate_json(found[0].removeprefix(_MARK))
    except ValidationError as error:
        first = error.errors()[0]
        wrong = one_line(" ".join([*map(str, first["loc"]), first["msg"]]))[:200]
        return f"the program's answer makes no sense: {wrong}"


def log_tail(observation: Observation) -> tuple[str, ...]:
    """Return the lines of a worker's output that tell most about a failure."""
    lines = _lines(observation.stderr) or _lines(observation.stdout)
    timeouts = [at for at, line in enumerate(lines) if line.startswith(_TIMEOUT)]
    if timeouts:  # faulthandler shows the innermost call first
        return tuple(lines[timeouts[-1] :][:_TAIL_LINES])
    return tuple(lines[-_TAIL_LINES:])


def _lines(stream: bytes) -> list[str]:
    lines = sanitize(stream).splitlines()
    return [line[:_LINE_LENGTH] for line in lines if line.strip()]

"""Compile a step for an accelerator type in the user's Python, and judge whether it fits."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from tpukit.accelerators import AcceleratorType
from tpukit.errors import BadInput, Fix, TpukitError, VerificationFailed
from tpukit.fit.memory_report import MemoryReport, read
from tpukit.text import one_line

_GIB = 1 << 30
#: libtpu's name of a generation, if it is not ours.
_LIBTPU = {"v5litepod": "v5e"}
#: JAX sees both cores of a v4 chip as one device.
_MEGACORE = {"v4": {"chip_config_name": "megacore"}}
#: Lines of a failed program's output to show.
_LINES = 3


@dataclass(frozen=True)
class TrainingStep:
    """A function in a Python file that returns a step and its arguments, and the Python for it."""

    program: Path
    function: str
    python: str

    @classmethod
    def parse(cls, text: str, python: str = "") -> TrainingStep:
        """Return the step named PROGRAM.py:STEP, for this Python or the first one on the PATH.

        Raises `BadInput` for another form, or if there is no such file.
        """
        path, colon, function = text.rpartition(":")
        if not colon or not function.isidentifier():
            raise BadInput(
                f"{one_line(text)} is not PROGRAM.py:STEP",
                fix=Fix.command("tpukit", "help", "fit"),
            )
        program = Path(path)
        if not program.is_file():
            fix = Fix(note="name the program and its function, as in train.py:step")
            raise BadInput(f"there is no file {one_line(path)}", fix=fix)
        return cls(program, function, python or shutil.which("python3") or "python3")


@dataclass(frozen=True)
class Fit:
    """The result for one type; `memory` and `available` are bytes of HBM of each device.

    `refusal` is the compiler's line if the step does not fit.
    """

    accelerator: AcceleratorType
    fits: bool
    seconds: float  #: that the compiler took
    available: int
    memory: MemoryReport
    refusal: str = ""

    def document(self) -> dict[str, Any]:
        """Return the JSON value."""
        return {
            "type": self.accelerator.name,
            "fits": self.fits,
            "devices": self.accelerator.devices,
            "peak_bytes": self.memory.total or None,
            "hbm_bytes": self.available,
            "compile_seconds": round(self.seconds, 1),
            "collectives": dict(self.memory.collectives),
            "buffers": [vars(buffer) for buffer in self.memory.buffers],
            "refusal": self.refusal,
        }


def fit(step: TrainingStep, accelerator: AcceleratorType) -> Fit:
    """Compile the step for a slice of this type.

    Raises:
        BadInput: the Python lacks JAX or libtpu, or the file lacks the function.
        TpukitError: the program failed.
    """
    with tempfile.TemporaryDirectory(prefix="tpukit-fit-") as folder:
        result, dumps = Path(folder, "result.json"), Path(folder, "dumps")
        dumps.mkdir()
        failed = _run(step, accelerator, result, dumps)
        document = _result(step, result, failed)
        memory = read(dumps, step.program.absolute())
    facts = accelerator.facts
    return Fit(
        accelerator,
        fits=document["fits"],
        seconds=document["seconds"],
        available=facts.hbm_gib_per_chip * _GIB // facts.devices_per_chip,
        memory=memory,
        refusal=one_line(document["why"]),
    )


def topology(accelerator: AcceleratorType) -> tuple[str, dict[str, Any]]:
    """Return libtpu's name of a type's topology, and options for `get_topology_desc`."""
    generation = accelerator.facts.name
    options: dict[str, Any] = dict(_MEGACORE.get(generation, {}))
    if accelerator.workers == 1:
        axes = [int(axis) for axis in accelerator.topology.split("x")]
        options["chips_per_host_bounds"] = [*axes, 1, 1][:3]
    return f"{_LIBTPU.get(generation, generation)}:{accelerator.topology}", options


def _run(step: TrainingStep, accelerator: AcceleratorType, result: Path, dumps: Path) -> str:
    """Run the program; return the end of its error output."""
    program = resources.files("tpukit").joinpath("fit/compile_program.py").read_text("utf-8")
    name, options = topology(accelerator)
    words = [str(step.program), step.function, str(result), str(dumps), name, json.dumps(options)]
    try:
        done = subprocess.run(
            [step.python, "-c", program, *words],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        what = f"cannot run {one_line(step.python)}: {error.strerror}"
        raise BadInput(what, fix=Fix(note="name another Python with --python")) from error
    lines = [line for line in done.stderr.splitlines() if line.strip(" ~^")]
    return "\n".join(map(one_line, lines[-_LINES:]))


def _result(step: TrainingStep, result: Path, failed: str) -> dict[str, Any]:
    what = f"{step.program}:{step.function}"
    if not result.exists():
        raise TpukitError(f"{one_line(what)} failed before it was compiled", why=failed)
    document: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    if "missing" in document:
        here = (sys.platform, platform.machine()) == ("linux", "x86_64")
        raise BadInput(
            f"{one_line(step.python)} has no module {one_line(document['missing'])}",
            why="" if here else "Google builds libtpu for Linux on x86_64 only",
            fix=Fix.command(step.python, "-m", "pip", "install", "jax", "libtpu"),
            otherwise=Fix(note="or name another Python with --python"),
        )
    if "lacks" in document:
        raise BadInput(f"{one_line(str(step.program))} has no function {step.function}")
    return document


def require(step: TrainingStep, accelerators: Sequence[AcceleratorType]) -> None:
    """Raise `VerificationFailed` if the step does not fit on each of the types."""
    for accelerator in accelerators:
        result = fit(step, accelerator)
        if not result.fits:
            words = ("tpukit", "fit", f"{step.program}:{step.function}", "--type", accelerator.name)
            raise VerificationFailed(
                f"{step.program}:{step.function} does not fit on {accelerator.name}",
                why=result.refusal,
                fix=Fix.command(*words, note="shows the largest buffers; nothing was created"),
                details=result.document(),
            )


def smallest(fits: Sequence[Fit]) -> Fit | None:
    """Return the first result with the fewest chips that fits."""
    return min(
        (one for one in fits if one.fits), key=lambda one: one.accelerator.chips, default=None
    )

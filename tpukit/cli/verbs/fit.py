"""`tpukit fit`: find out before paying whether a step fits on a type."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from tpukit.accelerators import AcceleratorType, spelled
from tpukit.cli import parameters as flag
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import fit_views
from tpukit.console import View
from tpukit.errors import BadInput, Fix
from tpukit.text import counted

Program = Annotated[str, Argument(metavar="PROGRAM.py:STEP", help="A function in a file.")]
Types = Annotated[str, Option("--type", metavar="TYPE,…", help="Compile it for these types.")]
Python = Annotated[
    str, Option(metavar="PATH", help="Python with jax and libtpu; default: python3 of your PATH.")
]


def fit(toolkit: Toolkit, program: Program, types: Types = "", python: Python = "") -> View:
    """Find out whether a training step fits into the memory of a type, without a TPU.

    It compiles the step on this machine, which must run Linux on x86_64. STEP is a function. It
    gets the list of the slice's devices and returns the step, jitted or not, and a tuple of its
    arguments; shapes (jax.ShapeDtypeStruct) are enough. An argument without a sharding is copied to
    every device. The program runs with your permissions.

    With several types it names the smallest one that fits. It ends with 10 if none does.

    Examples:
      tpukit fit train.py:step --type v6e-8
      tpukit fit train.py:step --type v6e-4,v6e-8,v6e-16 --python .venv/bin/python
    """
    from tpukit.fit import compiler

    accelerators = [
        AcceleratorType.parse(spelled(word)) for word in dict.fromkeys(flag.words(types))
    ]
    if not accelerators:
        raise BadInput(
            "there is no type to compile for",
            fix=Fix.command("tpukit", "fit", program, "--type", "v6e-8", note="for example"),
        )
    step = compiler.TrainingStep.parse(program, python)
    fits = []
    for accelerator in accelerators:
        devices = counted(accelerator.devices, "device")
        toolkit.console.say(f"{accelerator.name}: compiling for {devices}, without a chip")
        fits.append(compiler.fit(step, accelerator))
    return fit_views.fits(fits, compiler.smallest(fits), toolkit.cloud.rates)

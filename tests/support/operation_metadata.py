"""Which message type the emulators of a test run give to the metadata of their operations."""

from __future__ import annotations

import os
from typing import cast

from tpukit.emulator.core.operation_metadata import DEFAULT, VARIABLE, OperationMetadata


def of_this_run() -> OperationMetadata:
    """Return the type that TPUKIT_EMULATOR_OPERATION_METADATA asks for, or the default."""
    return cast(OperationMetadata, os.environ.get(VARIABLE) or DEFAULT)


def environment() -> dict[str, str]:
    """Return the variables that give a started command the type of this run."""
    return {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}

"""Signals to this process interrupt its main thread at any moment, as in the program tpukit."""

from __future__ import annotations

import sys

import pytest

from tpukit.cli import signals


@pytest.fixture(scope="session", autouse=True)
def _no_signal_is_lost() -> None:
    reporting = sys.unraisablehook  # pytest's own, which fails a test
    signals.lose_none()
    sys.unraisablehook = reporting

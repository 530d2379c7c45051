"""A plugin of pytest: the servers that all processes of a run share, from its begin to its end."""

from __future__ import annotations

import os
from contextlib import ExitStack

import pytest

from support.fork_servers import fork_servers

_servers = pytest.StashKey[ExitStack]()


def pytest_configure(config: pytest.Config) -> None:
    """Have servers before there are processes that share them."""
    config.stash[_servers] = ExitStack()
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.stash[_servers].enter_context(fork_servers())


def pytest_unconfigure(config: pytest.Config) -> None:
    end_servers(config)


def end_servers(config: pytest.Config) -> None:
    """Let the servers of this run write what they measured, and end; again, it does nothing."""
    config.stash[_servers].close()

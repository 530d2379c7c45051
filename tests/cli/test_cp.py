"""`tpukit cp`: how long it waits for a worker, and what it says did not come along."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.conftest import Local

pytestmark = pytest.mark.process

#: Python on the worker never answers from the next login on.
SILENT = """\
mkdir silent; printf '#!/bin/sh\\nexec sleep 1000\\n' >silent/python3; chmod +x silent/python3
echo 'PATH=$HOME/silent:$PATH' >.bashrc
"""


@pytest.fixture(scope="module")
def demo(local: Local) -> Iterator[str]:
    with local.slice("copied") as name:
        yield name


def test_what_a_download_leaves_out_is_named(local: Local, demo: str, tmp_path: Path) -> None:
    made = "mkdir tree; mkfifo tree/pipe; ln -s / tree/root; echo 1 >tree/file"
    assert local.run("run", demo, "--", made).status == 0
    done = local.run("cp", f"{demo}:tree", str(tmp_path))
    assert done.status == 0
    folder = tmp_path / "tree"
    assert f"left out of {folder}, as links that lead out of it: root\n" in done.err
    assert f"left out of {folder}, as neither file, folder nor link: pipe\n" in done.err
    assert [path.name for path in folder.iterdir()] == ["file"]


@pytest.mark.slow
def test_a_worker_that_says_nothing_ends_a_copy_within_its_timeout(
    local: Local, demo: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("text")
    assert local.run("run", demo, "--", SILENT).status == 0
    words = ("cp", "--timeout", "4s", str(tmp_path / "file"))
    try:
        up = local.run(*words, f"{demo}:there")
        down = local.run("cp", "--timeout", "4s", f"{demo}:tree", str(tmp_path))
        pushed = local.run("push", "--timeout", "4s", demo, str(tmp_path))
    finally:
        assert local.run("run", demo, "--", "rm .bashrc").status == 0
    for done in (up, down, pushed):
        assert "did not end in time" in done.says(8).err
    assert local.run(*words, f"{demo}:there").status == 0

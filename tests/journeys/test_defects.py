"""The table of gcloud's defects is made by running both, and tpukit does what it promises there."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import warm_gcloud
from support.pages import needs_gcloud

pytestmark = [pytest.mark.journey, pytest.mark.defects]

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "explanation" / "beside-gcloud.md"
#: Most of it is gcloud's: it starts some forty times, and waits for a minute between its tries.
SECONDS = 1100
#: The modules of defects, each with its first row on the page.
FIRST_ROWS = {
    "defects_of_retries": "a command that exits 255",
    "defects_of_commands": "exit 5 on workers 2 and 3",
    "defects_of_access": "--ssh-key-expire-after",
}


def defects(*names: str) -> subprocess.CompletedProcess[str]:
    """Run `scripts/defects` with this interpreter."""
    environment = {
        **os.environ,
        **warm_gcloud.environment(),
        "PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.run(
        [str(ROOT / "scripts" / "defects"), *names],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def table() -> list[list[str]]:
    """Return the rows of the page's table, without the marks that only a page has."""
    _, _, below = PAGE.read_text("utf-8").partition("| | gcloud | tpukit |\n| --- | --- | --- |\n")
    lines = itertools.takewhile(lambda line: line.startswith("|"), below.splitlines())
    return [line.replace("`", "").strip("| ").split(" | ") for line in lines]


def rows_of(module: str) -> list[list[str]]:
    """Return those rows of the page's table whose defects this module runs."""
    rows, firsts = table(), list(FIRST_ROWS.values())
    begins = [next(i for i, row in enumerate(rows) if row[0] == first) for first in firsts]
    assert begins == [0, *sorted(begins[1:])]
    part = list(FIRST_ROWS).index(module)
    return rows[begins[part] : [*begins, len(rows)][part + 1]]


def says(cell: str, shown: str) -> bool:
    """Tell whether a cell of the page, where … stands for anything, is what was seen."""
    return re.fullmatch(re.escape(cell).replace("…", ".*"), shown) is not None


@pytest.mark.timeout(SECONDS + 100)
@pytest.mark.parametrize("module", FIRST_ROWS)
def test_in_every_row_of_the_page_tpukit_is_right_and_gcloud_is_not(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_gcloud("the table of gcloud's defects")
    if os.geteuid():
        pytest.skip("not root: gcloud's port 22 is out of reach, the defects are NOT compared")
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "benches"))
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    done = defects(*(case.__name__ for case in importlib.import_module(module).CASES))
    assert done.returncode == 0, done.stdout + done.stderr
    header, *seen = [line.split("\t") for line in done.stdout.splitlines()]
    assert header == ["defect", "gcloud", "tpukit"]
    expected = rows_of(module)
    assert [row[0] for row in seen] == [row[0] for row in expected]
    for (defect, theirs, ours), (_, their_cell, our_cell) in zip(seen, expected, strict=True):
        assert says(f"WRONG: {their_cell}", theirs), f"{defect}: gcloud {theirs}"
        assert says(f"right: {our_cell}", ours), f"{defect}: tpukit {ours}"


@pytest.mark.parametrize("client", ["true", "false"])
def test_a_client_that_does_nothing_is_right_in_no_row(
    client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "benches"))
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from comparison import Comparison
    from defects import CASES

    class Idle(Comparison):
        def tpukit_words(self, *words: str) -> list[str]:
            return [client]

        def arrange(self, *words: str) -> str:
            return '{"faults": [{"served": 0}]}'

    (tmp_path / "gcloud").symlink_to(shutil.which(client) or client)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    comparison = Idle({**environment, "CLOUDSDK_COMPUTE_ZONE": "nowhere"}, tmp_path)
    for case in CASES.values():
        with contextlib.suppress(SystemExit, ValueError):  # nothing to read: that ends the run
            case(comparison)
    assert len(comparison.rows) > 10
    assert [str(row) for row in comparison.rows if row.gcloud.right or row.tpukit.right] == []


def test_a_defect_that_is_not_listed_is_refused() -> None:
    done = defects("none-such")
    assert done.returncode == 2
    assert "no none-such; there are repeated_command" in done.stderr

"""`tpukit report` against the real emulator."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.conftest import Local

pytestmark = pytest.mark.process


@pytest.mark.slow
def test_a_report_has_the_slice_its_checks_environments_and_runs(
    local: Local, tmp_path: Path
) -> None:
    assert local.run("create", "v3-8", "told", "--purpose", "first-try").status == 0
    assert local.run("firewall", "apply", "told").status == 0
    assert local.run("run", "told", "--detach", "--run-id", "bad", "--", "exit 3").status == 0
    assert local.run("attach", "told", "bad").status == 3
    done = local.run("report", "told", cwd=tmp_path)
    assert (done.status, done.out) == (0, "told.html\n"), done.err
    text = (tmp_path / "told.html").read_text(encoding="utf-8")
    for word in ("first-try", "emulator-local1-a", "worker 0, disk", "1/1 exited 3", "exit 3"):
        assert word in text
    assert local.run("stop", "told").status == 0
    assert local.run("report", "told", "--to", str(tmp_path / "told.html")).status == 0
    text = (tmp_path / "told.html").read_text(encoding="utf-8")
    assert "STOPPED" in text
    assert "<h2>Runs</h2>" not in text
    assert local.run("delete", "told", "--yes").status == 0


def test_a_page_that_cannot_be_written_is_refused_before_anything_is_made(
    local: Local, tmp_path: Path
) -> None:
    (tmp_path / "notes.html").write_text("mine")
    for words in (("report", "nobody", "--to"), ("up", "v3-8", "nobody", "--report")):
        told = local.run(*words, str(tmp_path / "notes.html")).says(2).err
        assert "notes.html is another file" in told
    assert "nobody" not in local.run("list", "-o", "name").out

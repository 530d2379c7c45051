"""What coverage keeps of processes: of one that was killed as it wrote, nothing."""

from __future__ import annotations

from pathlib import Path

from coverage import CoverageData
from support.coverage_files import remove_damaged


def test_data_that_was_not_finished_is_removed_and_all_else_stays(tmp_path: Path) -> None:
    data = CoverageData(str(tmp_path / ".coverage"), suffix="vm.pid1.Xabcdefx")
    data.add_arcs({f"/{each}.py": [(line, line + 1) for line in range(300)] for each in range(9)})
    data.close()
    whole = Path(data.data_filename())
    content = whole.read_bytes()
    page = 4096
    damaged = {
        "begun": b"",
        "cut": content[: 5 * page],
        # a page that was not written yet: `coverage combine` fails of it
        "gap": content[: 7 * page] + bytes(page) + content[8 * page :],
    }
    for name, text in damaged.items():
        (tmp_path / f".coverage.vm.pid2.{name}").write_bytes(text)
    finished = tmp_path / ".coverage.vm.pid3.Xabcdefx.Habcdefghijh"
    finished.write_bytes(b"")
    remove_damaged(tmp_path)
    assert {*tmp_path.iterdir()} == {whole, finished}

"""The page of a report: its escaped texts, its empty columns, other files, and a browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.browser import needs_chromium, opened

from tpukit.errors import BadInput
from tpukit.report.page import Section, Span, check_page, page, write_page

HOSTILE = "<script>document.title='no'</script>\x1b[2J\n\"'&"
SECTIONS = (
    Section("Slice", ("FIELD", "VALUE"), [["name", HOSTILE], ["labels", HOSTILE * 3]], [HOSTILE]),
    Section("Runs", ("RUN", "COMMIT"), []),
)


def test_every_text_is_escaped() -> None:
    text = page(HOSTILE, HOSTILE, SECTIONS, [Span(HOSTILE, 0.0, 1.0)])
    assert "<script" not in text
    assert "\x1b" not in text
    assert text.count("&lt;script&gt;") == 2 + 1 + 1 + 4 + 1


def test_an_empty_table_says_so_and_an_empty_column_is_left_out() -> None:
    text = page("a", "b", [*SECTIONS[1:], Section("Jobs", ("RUN", "COMMIT"), [["one", ""]])])
    assert "<h2>Runs</h2>\n<p>none</p>" in text
    assert "commit" not in text


def test_a_timeline_is_drawn_to_its_longest_step() -> None:
    text = page("a", "b", (), [Span("create", 0.0, 30.0), Span("smoke", 30.0, 40.0)])
    assert "left:0.0%;width:75.0%" in text
    assert "left:75.0%;width:25.0%" in text
    assert "<b>30.0 s</b>" in text


def test_a_page_replaces_only_a_page(tmp_path: Path) -> None:
    path = tmp_path / "demo.html"
    for title in ("first", "second"):
        write_page(check_page(str(path)), page(title, "", ()))
    assert "second" in path.read_text()
    own = tmp_path / "mine.html"
    own.write_text("my notes")
    for given, told in ((own, "is another file"), (tmp_path / "no/x", "is in no existing folder")):
        with pytest.raises(BadInput, match=told):
            check_page(str(given))
    with pytest.raises(BadInput, match="cannot"):
        check_page(str(tmp_path))
    assert own.read_text() == "my notes"


@needs_chromium
@pytest.mark.pages
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_shows_it_whole_and_loads_nothing_else(width: int, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    wide = Section("Checks", tuple("ABCDEFGHIJ"), [["a long cell of a table"] * 10])
    write_page(path, page("TPU slice demo", "now", [*SECTIONS, wide], [Span("smoke", 0.0, 4.25)]))
    seen = opened(path, width, tmp_path)
    assert seen.title == "TPU slice demo"
    assert seen.width == width, "a wide table scrolls in its own box"
    assert seen.loaded == 0
    for text in ("Timeline", "smoke", "4.2 s", "<script>document.title='no'</script>", "none"):
        assert text in seen.text

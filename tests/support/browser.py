"""A headless Chromium, which lays out a page at any width and tells what it shows."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

needs_chromium = pytest.mark.skipif(
    shutil.which("chromium") is None,
    reason="chromium is not installed: reports are NOT opened by this run",
)
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-quic"),
)
#: A frame can be narrower than a window.
_FRAME = """\
<!doctype html><body><iframe id="frame" style="border:0;width:{width}px;height:900px"
srcdoc="{page}"></iframe><pre id="told"></pre><script>
frame.onload = () => {{
  const inside = frame.contentDocument, root = inside.documentElement;
  told.textContent = JSON.stringify({{
    width: root.scrollWidth, text: inside.body.innerText, title: inside.title,
    loaded: frame.contentWindow.performance.getEntriesByType("resource").length}});
}};
</script>
"""


@dataclass(frozen=True)
class Seen:
    """A page as a browser shows it; `loaded` counts its requests for further files."""

    width: int
    text: str
    title: str
    loaded: int


def opened(page: Path, width: int, folder: Path) -> Seen:
    """Open a page in a frame of this width; `folder` is for the browser's files."""
    frame = folder / f"frame-{width}.html"
    frame.write_text(_FRAME.format(width=width, page=html.escape(page.read_text("utf-8"))))
    words = ["chromium", *_FLAGS, f"--user-data-dir={folder / 'browser'}", "--dump-dom"]
    done = subprocess.run(
        [*words, frame.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    told = re.search(r'<pre id="told">(.*?)</pre>', done.stdout, re.DOTALL)
    assert told, done.stdout + done.stderr
    return Seen(**json.loads(html.unescape(told[1])))


def visited(url: str, folder: Path) -> str:
    """Return the text of a page from a server, after its programs have built it."""
    words = ["chromium", *_FLAGS, f"--user-data-dir={folder / 'browser'}"]
    words += ["--virtual-time-budget=30000", "--dump-dom", url]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=True)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", done.stdout)).split())

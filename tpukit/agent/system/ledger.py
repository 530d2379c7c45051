"""The ledger of a step: it notes how to undo each change, before the change is made."""

from __future__ import annotations

import contextlib
import glob
import os
import shlex
import time
from typing import Any, Callable

from tpukit.agent.main import Home, Request
from tpukit.agent.system.commands import StepRefused

_UNDO = "undo\t"


class LedgerFile:
    """A file with lines of a key, a tab and a text; words of an undo are quoted for a shell."""

    def __init__(self, home: Home, step: Request) -> None:
        self.folder = ledgers_folder(home)
        self.entry: str = step["entry"]
        self.path = os.path.join(self.folder, self.entry)
        self._step = step

    def has(self, *words: str) -> bool:
        """Return True if the ledger has an undo that begins with these words."""
        undos = (line[len(_UNDO) :] for line in self._lines() if line.startswith(_UNDO))
        return any(tuple(shlex.split(undo)[: len(words)]) == words for undo in undos)

    def note(self, *words: str) -> None:
        """Note the undo of the next change; raise `StepRefused` if a word has a line break."""
        if self.has(*words):
            return
        if any("\n" in word for word in words):
            raise StepRefused(f"a name has a line's end in it: {' '.join(words)}", "rename it")
        lines = self._lines() or self._first_lines()
        new = f"{self.folder}/.{self.entry}.new"
        try:  # a full disk may not cut a path short: that of a folder above would be undone
            with open(new, "w", errors="surrogateescape") as file:
                file.writelines([*lines, f"{_UNDO}{' '.join(map(shlex.quote, words))}\n"])
            os.replace(new, self.path)
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new)
            raise

    def take_back(self, undo: Callable[..., None]) -> None:
        """Undo all changes, the last first; remove each from the ledger, so it may be repeated."""
        lines = self._lines()
        while lines and lines[-1].startswith(_UNDO):
            text = lines.pop()[len(_UNDO) :]
            print("undo:", text.strip(), flush=True)
            undo(*shlex.split(text))
            # In place: this needs no room on a full disk.
            os.truncate(self.path, len("".join(lines).encode(errors="surrogateescape")))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    def _first_lines(self) -> list[str]:
        os.makedirs(self.folder, 0o700, exist_ok=True)
        # One more than the newest, because the newest step is undone first.
        number = 1 + max([ledger["number"] for ledger in ledgers(self.folder)], default=0)
        step, at = self._step, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        first = f"word\t{step['word']}\nvalue\t{step['value']}\nnumber\t{number}\n"
        return [f"{first}by\ttpukit {step['version']}\nat\t{at}\n"]

    def _lines(self) -> list[str]:
        try:
            with open(self.path, errors="surrogateescape") as file:
                return list(file)
        except FileNotFoundError:
            return []


def ledgers_folder(home: Home) -> str:
    """Return the folder of all ledgers."""
    return os.path.join(home.folder, "ledger")


def ledgers(folder: str) -> list[dict[str, Any]]:
    """Return the content of every ledger."""
    result = []
    for path in filter(os.path.isfile, glob.glob(f"{glob.escape(folder)}/*")):
        with open(path, errors="replace") as file:
            rows = [line.rstrip("\n").partition("\t")[::2] for line in file]
        said = dict(rows)  # fields can be missing if the disk was full
        number, undo = said.get("number", ""), [text for key, text in rows if key == "undo"]
        ledger: dict[str, Any] = {key: said.get(key, "") for key in ("by", "at", "value")}
        ledger.update(step=said.get("word", ""), number=int(number or 0), undo=undo)
        result.append(ledger)
    return result

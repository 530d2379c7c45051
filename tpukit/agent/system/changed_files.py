"""Changes of the user's and the system's files, each of which can be undone exactly."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Sequence

from tpukit.agent.system.commands import StepRefused, for_path, output, run, succeeds
from tpukit.agent.system.ledger import LedgerFile


def content(path: str) -> bytes | None:
    """Return the content of a file, None if there is none."""
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        return file.read()
    return None


def is_link(path: str, target: str) -> bool:
    """Return True if this is a link to the target."""
    return os.path.islink(path) and os.readlink(path) == target


def put_file(ledger: LedgerFile, path: str, text: str) -> None:
    """Write a file with tpukit's name in it; raise `StepRefused` if another one is there."""
    present = content(path)
    if present is not None and b"tpukit" not in present and not ledger.has("take_file", path):
        raise StepRefused(f"{path} is there already, and is not tpukit's", "move it away")
    put_folder(ledger, os.path.dirname(path))
    ledger.note("take_file", path)
    _replace(path, text.encode(), "644")


def take_file(path: str) -> None:
    """Undo: remove a file."""
    run(*for_path(path, "rm", "-f", path))


def put_folder(ledger: LedgerFile, path: str) -> None:
    """Make a folder and the folders above it."""
    if not os.path.isdir(path):
        put_folder(ledger, os.path.dirname(path))
        ledger.note("take_folder", path)
        run(*for_path(path, "mkdir", path))


def take_folder(path: str) -> None:
    """Undo: remove a folder if it is empty."""
    if not succeeds(*for_path(path, "rmdir", path), quiet=True) and os.path.isdir(path):
        print(f"kept, it is not empty: {path}")


def take_tree(path: str) -> None:
    """Undo: remove a clone; raise `StepRefused` if something in it is nowhere else."""
    status = ("status", "--porcelain", "--ignored", "--", ".", ":!cache", ":!log")
    unpushed = ("log", "--branches", "--not", "--remotes", "--format=%h")
    if any(output("git", "-C", path, *words) for words in (status, unpushed)):
        raise StepRefused(f"{path} has changes of yours", "push them, or move it away")
    run(*for_path(path, "rm", "-rf", path))


def put_link(ledger: LedgerFile, path: str, target: str) -> None:
    """Make a link in the home folder."""
    ledger.note("take_link", path, target)
    os.symlink(target, path)


def take_link(path: str, target: str) -> None:
    """Undo: remove a link, unless it has changed since."""
    if is_link(path, target):
        run(*for_path(path, "rm", "-f", path))


def bring_back(kept: str, path: str) -> None:
    """Undo: put back a file that was in the way; raise `StepRefused` if one is there again."""
    if os.path.lexists(kept):
        if os.path.lexists(path):
            raise StepRefused(f"{path} is there again", "move it away")
        run(*for_path(path, "mv", kept, path))


class Block:
    """The lines of a step at the end of a shared file, between two marks.

    An editor may have indented the marks, or changed the line ends.
    """

    def __init__(self, entry: str, path: str) -> None:
        self.path = os.path.realpath(path)
        self._entry = entry
        self._begin, self._end = f"# >>> tpukit {entry} >>>", f"# <<< tpukit {entry} <<<"
        begin, end = rf"^[^\S\n]*{self._begin}[^\S\n]*", rf"^[^\S\n]*{self._end}[^\S\n]*"
        self._marks = re.compile(f"({begin}$)|{end}$".encode(), re.MULTILINE)
        pattern = rf"{begin}\n.*?{end}(?:\n|\Z)".encode()
        self._blocks = re.compile(pattern, re.MULTILINE | re.DOTALL)

    def holds(self, line: str) -> bool:
        """Return True if the file has exactly this block."""
        blocks = self._blocks.findall(content(self.path) or b"")
        return [block.rstrip(b"\n") for block in blocks] == [self._block(line).rstrip(b"\n")]

    def put(self, ledger: LedgerFile, line: str) -> None:
        """Write the block to the file, in place of an older one."""
        present, rest = content(self.path), self.rest()
        how: Sequence[str] = ["whole"]
        if present is None:
            how = ["made"]
        elif present and not present.endswith(b"\n"):
            how = ["cut", str(len(present))]  # its last line has no end
        if not ledger.has("take_block", self._entry, self.path):
            ledger.note("take_block", self._entry, self.path, *how)
        if rest and not rest.endswith(b"\n"):
            rest += b"\n"
        _replace(self.path, rest + self._block(line), "644" if present is None else "")

    def rest(self) -> bytes:
        """Return the content of the file without the block.

        Raises `StepRefused` if the second mark is gone: then the end of the block is unknown.
        """
        present = content(self.path) or b""
        marks = "".join("b" if mark[1] else "e" for mark in self._marks.finditer(present))
        if re.search("bb|b$", marks):
            fix = f"put it back after tpukit's lines, or remove '{self._begin}' too"
            raise StepRefused(f"the line '{self._end}' is gone from {self.path}", fix)
        return self._blocks.sub(b"", present)

    def _block(self, line: str) -> bytes:
        return f"{self._begin}\n{line}\n{self._end}\n".encode()


def take_block(entry: str, path: str, how: str, size: str = "0") -> None:
    """Undo: remove a block from a file.

    `how` describes the file before the block: "made" (it did not exist), "cut" (its last line had
    no end, and `size` is its size in bytes), or "whole".
    """
    if not os.path.exists(path):
        return
    rest = Block(entry, path).rest()
    if how == "cut" and len(rest) == int(size) + 1:
        rest = rest[: int(size)]
    if how == "made" and not rest:
        take_file(path)
    else:
        _replace(path, rest)


def _replace(path: str, data: bytes, mode: str = "") -> None:
    """Write a file, all or nothing. Its owner and mode stay unless a mode is given."""
    new = f"{path}.tpukit-new"
    if not mode:
        run(*for_path(path, "cp", "-p", path, new))
    run(*for_path(path, "tee", new), given=data)
    if mode:
        run(*for_path(path, "chmod", mode, new))
    run(*for_path(path, "mv", "-f", new, path))

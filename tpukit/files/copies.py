"""The copies of `tpukit cp`, between this machine and the workers of one slice."""

from __future__ import annotations

import glob
import posixpath
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

from tpukit.errors import BadInput, Fix
from tpukit.files.download import Source, download
from tpukit.files.payload import Payload, file_payload, tree_members, tree_payload
from tpukit.files.spread import distribute
from tpukit.files.upload import Placement, TransferContext
from tpukit.ssh.fan_out import Outcome, fan_out
from tpukit.ssh.worker import RemoteWorker
from tpukit.text import one_line, shown_path

# A slice's name before the first colon; any other word is a path on this machine.
_REMOTE = re.compile(r"([a-z][-a-z0-9]{0,61}):(.*)", re.DOTALL)


@dataclass(frozen=True)
class RemotePath:
    """`NAME:PATH`: a path on the workers of a slice, relative to the home folder."""

    slice: str
    path: str

    @property
    def clean(self) -> str:
        """The path for a worker's programs: never empty, never taken for an option."""
        below_home = self.path.removeprefix("~/") if self.path != "~" else ""
        return below_home if below_home.startswith("/") else f"./{below_home}"


@dataclass(frozen=True)
class Copy:
    """A valid command line: every source goes up to one slice, or comes down from one."""

    slice: str
    direction: Literal["up", "down"]
    sources: tuple[str, ...]
    destination: str
    into: bool  #: True if the destination must be a folder

    @classmethod
    def parse(cls, words: Sequence[str]) -> Copy:
        """Return the copy for `SOURCE… DESTINATION`; raise `BadInput` if the words form none."""
        if len(words) < 2:
            raise BadInput(
                "cp needs a source and a destination", fix=Fix.command("tpukit", "cp", "--help")
            )
        *sources, destination = [_parse(word) for word in words]
        several = len(sources) > 1
        if isinstance(destination, RemotePath):
            local = [source for source in sources if isinstance(source, str)]
            if len(local) < len(sources):
                raise BadInput("cp copies to workers or from them, not between them")
            into = several or posixpath.basename(destination.clean) in ("", ".", "..")
            return cls(destination.slice, "up", tuple(local), destination.clean, into)
        remote = [source for source in sources if isinstance(source, RemotePath)]
        if len(remote) < len(sources) or len({source.slice for source in remote}) > 1:
            raise BadInput(
                "one side of a copy is a slice, and only one",
                fix=Fix.command(
                    "tpukit", "cp", "--help", note="results.csv demo: or demo:results ."
                ),
            )
        paths = tuple(source.clean for source in remote)
        return cls(remote[0].slice, "down", paths, destination, several or destination[-1:] == "/")


def upload(
    copy: Copy, workers: Sequence[RemoteWorker], context: TransferContext
) -> list[Outcome[RemoteWorker, str]]:
    """Copy files and folders to every worker.

    A single file is not sent to workers that already have it; folders are always sent.
    """
    payload, placement = packed(copy)
    return distribute(payload, workers, context, placement)


def packed(copy: Copy) -> tuple[Payload, Placement]:
    """Return the bytes that an upload sends, and their place on the workers.

    Raises `BadInput` if a source does not exist, or two have the same name.
    """
    paths = [path for word in copy.sources for path in _local(word)]
    into = copy.into or len(paths) > 1
    first, name = paths[0], _name(paths[0])
    target = copy.destination.rstrip("/") or "/"
    if len(paths) == 1 and first.is_file():
        mode = stat.S_IMODE(first.stat().st_mode) & 0o777
        return file_payload(first), Placement(target, name, into, mode, "file")
    names = [_name(path) for path in paths]
    _check_names(names)
    trees = [tree_members(path.resolve(), name) for path, name in zip(paths, names, strict=True)]
    return tree_payload(list(chain(*trees))), Placement(target, name, into, kind="tree")


def fetch(
    copy: Copy, workers: Sequence[RemoteWorker], context: TransferContext, *, sudo: bool = False
) -> list[Outcome[RemoteWorker, list[Path]]]:
    """Copy from workers to this machine; several workers get a folder `worker-N` each.

    Raises `BadInput` if a source has no name, or two have the same one.
    """
    several = len(workers) > 1
    sources = [Source(path) for path in copy.sources]
    _check_names([source.name for source in sources if not source.pattern])

    def work(worker: RemoteWorker) -> list[Path]:
        chosen = Path(copy.destination)
        target = chosen / f"worker-{worker.index}" if several else chosen
        into = several or copy.into
        with context.connection(worker) as connection:
            return [
                download(connection, source, target, context, into=into, chosen=chosen, sudo=sudo)
                for source in sources
            ]

    return fan_out(workers, work, window=8, cancel=context.cancel)


def _check_names(names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise BadInput("two of the sources have the same name")


def _parse(word: str) -> RemotePath | str:
    if not word or "\0" in word:
        raise BadInput("an empty path names nothing")
    match = _REMOTE.fullmatch(word)
    return RemotePath(match[1], match[2]) if match else word


def _local(word: str) -> list[Path]:
    """Return the paths that a word names here; expand a pattern that the shell did not."""
    path = Path(word)
    if path.exists():
        return [path]
    paths = [Path(match) for match in sorted(glob.glob(word, recursive=True))]
    if not paths:
        raise BadInput(f"there is no {one_line(word)} here")
    return paths


def _name(path: Path) -> str:
    """Return the name that a path gets at the destination, also for `.` and `..`."""
    name = posixpath.basename(str(path)) if path.name not in ("", "..") else path.resolve().name
    if not name:
        raise BadInput(f"{shown_path(path)} has no name to be copied under")
    return name

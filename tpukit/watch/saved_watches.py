"""The file of a watch: its task and its history. A kill at any moment leaves the file intact.

The cloud knows the state of the slice; the file knows the intention. Each step is written before it
is taken, so that a deleted slice can be made again from the file.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tpukit.access import ssh_rule
from tpukit.errors import BadInput, Fix, NameTaken, TpukitError
from tpukit.google.node_json import CAPACITY, MAX_RUN
from tpukit.models import DataDisk, Documented, Slice, SliceChange, SliceRequest
from tpukit.paths import exclusively, private_directory, recall_json, replace_file
from tpukit.slices import lifetime, naming
from tpukit.slices.capacity import ASKING_SECONDS
from tpukit.text import shown_path
from tpukit.watch import RECOVERIES

#: The states of an open watch: its slice exists, or its slice is lost.
WATCHING, RECOVERING = "watching", "recovering"
#: The state of a watch that is over.
ENDED = "ended"


@dataclass(frozen=True)
class Event(Documented):
    """An event and its time, in seconds since the epoch."""

    event: str
    detail: str = ""
    time: float = 0.0


@dataclass(frozen=True)
class WatchSpec:
    """Everything needed to make the slice again and to start the command on it.

    The request has no labels of a single create. Variables are stored as typed, and their file by
    its name, so that values from the environment are not stored.
    """

    request: SliceRequest
    run_id: str = ""
    command: str = ""  #: empty if only the slice is kept
    zones: tuple[str, ...] = ()  #: further zones to make it in
    queued_resource: str = ""  #: the slice's queued resource
    recipe: str = ""
    activate: str = ""  #: the recipe whose environment the command uses
    requirements: str = ""  #: the full path of a local file
    indexes: tuple[str, ...] = ()
    editable: str = ""
    push: str = ""  #: the full path of a local folder
    push_to: str = ""
    workdir: str = ""  #: a folder on the workers
    variables: tuple[str, ...] = ()
    variable_file: str = ""
    firewall: bool = True
    source_ranges: tuple[str, ...] = ()
    recoveries: int = RECOVERIES  #: at most
    max_wait: float = ASKING_SECONDS  #: for capacity, each time
    delete_when_done: bool = False
    clean: bool = False  #: True if the command needs a clean slice
    ray: tuple[str, ...] = ()  #: the slices of its Ray cluster, that of the head first

    @property
    def places(self) -> tuple[str, ...]:
        """The zones in which it may be made: first the one that it was in when it was watched."""
        return (self.request.zone, *self.zones)

    @property
    def begun(self) -> tuple[str, str]:
        """The events for a running command: it was started, or it already ran.

        Without a command, both say that the slice is ready.
        """
        if not self.command:
            return "ready", "ready"
        return f"run {self.run_id} started", f"run {self.run_id} found"


@dataclass(frozen=True)
class Watch:
    """The content of a watch's file.

    `zone` is the slice's zone, or its last zone; `id` is the API's id of that slice.
    """

    spec: WatchSpec
    state: str = WATCHING
    stopped: bool = False  #: True after `tpukit watch --stop` or SIGTERM
    zone: str = ""
    id: str = ""
    recoveries: int = 0
    status: int | None = None  #: exit status of the command, once it has ended
    history: tuple[Event, ...] = ()

    @property
    def name(self) -> str:
        return self.spec.request.name

    @property
    def open(self) -> bool:
        """True if the watch can be resumed."""
        return self.state != ENDED and not self.stopped

    def document(self) -> dict[str, Any]:
        """Return the public JSON value, without variables and metadata, which may be secret."""
        spec, request = self.spec, self.spec.request
        return {
            "name": self.name,
            "state": "stopped" if self.stopped else self.state,
            "zone": self.zone,
            "accelerator_type": request.accelerator_type,
            "run": spec.run_id,
            "command": spec.command,
            "recoveries": self.recoveries,
            "status": self.status,
            "history": [event.document() for event in self.history],
        }


class NotWritten(TpukitError):
    """The file of a watch could not be written."""


@dataclass(frozen=True)
class WatchFile:
    """The file of one watch. Only the process that holds it (`held`) may write it."""

    path: Path

    def load(self) -> Watch | None:
        """Return the watch, or None if the file is missing or unreadable."""
        try:
            return _watch(recall_json(self.path))
        except (KeyError, TypeError, ValueError):
            return None

    def save(self, watch: Watch) -> None:
        """Write the watch and flush it to the disk; raise `NotWritten` if that fails."""
        try:
            private_directory(self.path.parent)
            replace_file(self.path, json.dumps(asdict(watch)), durable=True)
        except OSError as error:
            raise NotWritten(
                f"cannot write {shown_path(self.path)}, which every step needs",
                reason=error.strerror or "",
            ) from error

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the watch during the block; raise `NameTaken` if another process holds it."""
        private_directory(self.path.parent)
        with ExitStack() as stack:
            try:
                stack.enter_context(exclusively(self._lock, wait=False))
            except BlockingIOError:
                name, process = self.path.name.partition(".")[0], self.process() or "unknown"
                raise NameTaken(
                    f"slice {name} is already watched by process {process}",
                    fix=Fix.command("tpukit", "watch", name, "--stop", note="ends that watch"),
                ) from None
            self._lock.write_text(str(os.getpid()))
            yield

    def process(self) -> int | None:
        """Return the id of the process that holds the watch (0 if unknown), or None."""
        try:
            with self._lock.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return None
        except BlockingIOError:
            with suppress(OSError, ValueError):
                return int(self._lock.read_text())
            return 0
        except OSError:
            return None

    @property
    def log(self) -> Path:
        """The log of a detached watch."""
        return self.path.with_suffix(".log")

    @property
    def _lock(self) -> Path:
        return self.path.with_suffix(".lock")


@dataclass(frozen=True)
class WatchFiles:
    """The files of this machine's watches, for one project of one API."""

    folder: Path
    endpoint: str
    project: str

    def of(self, zone: str, name: str) -> WatchFile:
        """Return the file for the watch of a slice; it may already exist.

        A watch keeps its file if its slice is made again in another zone.
        """
        for file, _ in self.named(name, zone):
            return file
        taken = {file.path for file, _ in self.all()}
        stems = (f"{name}.{zone}", *(f"{name}.{zone}.{number}" for number in range(2, 100)))
        paths = (self.folder / f"{stem}.{self._place}.json" for stem in stems)
        return WatchFile(next(path for path in paths if path not in taken))

    def named(self, name: str, zone: str = "") -> list[tuple[WatchFile, Watch]]:
        """Return the watches of slices of that name that are or may be made in a zone ("": any)."""
        return [
            (file, watch)
            for file, watch in self.all()
            if watch.name == name
            and zone in ("", watch.zone, *(watch.spec.places if watch.state == RECOVERING else ()))
        ]

    def one(self, name: str, zone: str = "") -> tuple[WatchFile, Watch] | None:
        """Return the open watch of a slice of that name, else the last one; None without any.

        Raises `BadInput` if the slices of several zones are watched.
        """
        named = self.named(name, zone)
        named = [known for known in named if known[1].open] or named[-1:]
        if len(named) > 1:
            zones = ", ".join(watch.zone for _, watch in named)
            fix = Fix(note=f"add --zone {named[0][1].zone}")
            raise BadInput(f"slices {name} of several zones are watched: {zones}", fix=fix)
        return named[0] if named else None

    def all(self) -> list[tuple[WatchFile, Watch]]:
        """Return every readable watch with its file, sorted by the files' names."""
        files = [WatchFile(path) for path in sorted(self.folder.glob(f"*.{self._place}.json"))]
        return [(file, watch) for file in files if (watch := file.load())]

    @property
    def _place(self) -> str:
        return hashlib.sha256(f"{self.endpoint}\n{self.project}".encode()).hexdigest()[:8]


@dataclass
class Record:
    """The current watch and its file, which is written at every change."""

    file: WatchFile
    watch: Watch
    now: Callable[[], float]  #: the seconds since the epoch

    def note(self, event: str, detail: str = "", **changes: Any) -> None:
        """Change the watch and add to its history; raise `NotWritten` if writing fails."""
        happened = Event(event, detail, round(self.now(), 3))
        self.change(history=(*self.watch.history, happened), **changes)

    def change(self, **changes: Any) -> None:
        """Change the watch; raise `NotWritten` if writing fails."""
        watch = replace(self.watch, **changes)
        self.file.save(watch)
        self.watch = watch


def is_resumed(before: Watch, command: str, *, given: bool) -> bool:
    """Return True if a command line resumes this watch, False if it begins a new one.

    Without a command, it means the watch's own. `given` is True if it says what to watch.

    Raises:
        NameTaken: the slice is watched with another command.
        BadInput: the watch has ended, and there is no command.
    """
    if before.open and command not in ("", before.spec.command):
        raise taken(before)
    if not before.open and given:
        return False
    if before.state == ENDED:
        raise _over(before)
    return True


def taken(before: Watch) -> NameTaken:
    """Return the error for a slice that is watched with another command."""
    name = before.name
    return NameTaken(
        f"slice {name} is already watched with another command",
        reason=before.spec.command[:60],
        fix=Fix.command("tpukit", "watch", name, note="resumes that watch"),
        otherwise=Fix.command("tpukit", "watch", name, "--stop", note="ends it"),
    )


def _over(before: Watch) -> BadInput:
    """Return the error for a watch that has ended, which is not resumed without its command."""
    name, last = before.name, before.history[-1]
    spec = before.spec
    task = ["--ray", ",".join(spec.ray)] if spec.ray else []
    task += ["--", spec.command] if spec.command else []
    return BadInput(
        f"the watch of slice {name} has ended",
        reason=f"{last.event}: {last.detail}" if last.detail else last.event,
        fix=Fix.command(
            *("tpukit", "watch", name, "--zone", before.zone, *task),
            note="begins again, if the slice exists",
        )
        if task
        else None,
    )


def request_of(slice_: Slice) -> SliceRequest:
    """Return the request that makes an equal slice.

    It lacks the labels of a single create and the tag of the slice's rule. It keeps the slice's
    end, so the next slice gets no additional time.
    """
    once = (
        naming.NONCE,
        naming.SEARCH,
        naming.GANG,
        lifetime.CREATED,
        lifetime.CLAIM,
        CAPACITY,
        MAX_RUN,
    )
    labels = {key: value for key, value in slice_.labels.items() if key not in once}
    tags = tuple(tag for tag in slice_.tags if tag != ssh_rule.rule_name(slice_))
    return replace(slice_.request, labels=labels, tags=tags)


def refreshed(request: SliceRequest, slice_: Slice) -> SliceRequest:
    """Return the request with the slice's current labels, tags, metadata and data disks."""
    if slice_.unreadable:
        return request
    now = request_of(slice_)
    parts = SliceChange(now.labels, now.tags, now.metadata, now.data_disks).parts
    return replace(request, **parts)


def _watch(document: Mapping[str, Any]) -> Watch:
    spec, request = document["spec"], document["spec"]["request"]
    disks = tuple(DataDisk(**disk) for disk in request["data_disks"])
    made = SliceRequest(**{**_tuples(request), "data_disks": disks})
    history = tuple(Event(**event) for event in document["history"])
    whole = WatchSpec(**{**_tuples(spec), "request": made})
    return Watch(**{**_tuples(document), "spec": whole, "history": history})


def _tuples(document: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: tuple(value) if isinstance(value, list) else value for key, value in document.items()
    }

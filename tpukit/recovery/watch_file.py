"""What a watch is to do and what became of it, in a file that a kill at any moment leaves whole.

The cloud says what there is; the file says what was meant. It is written before whatever it is
about: a slice that is deleted can be made again from it.
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
from tpukit.cloud.node_json import CAPACITY
from tpukit.errors import Fix, NameTaken, TpukitError
from tpukit.models import DataDisk, Documented, Slice, SliceChange, SliceRequest
from tpukit.paths import exclusively, private_directory, recall_json, replace_file
from tpukit.slices import lifetime, naming
from tpukit.text import shown_path

#: The states of a watch that is to go on: at work, and with its slice lost.
WATCHING, RECOVERING = "watching", "recovering"
#: That of one which is over.
ENDED = "ended"


@dataclass(frozen=True)
class Event(Documented):
    """What happened and when, in seconds since the epoch."""

    event: str
    detail: str = ""
    time: float = 0.0


@dataclass(frozen=True)
class WatchSpec:
    """All that is needed to make the slice again and to begin the command on it.

    The request has no label of a call yet. Variables are words as they were typed and the name of
    a file: values that come from the environment are in neither.
    """

    request: SliceRequest
    run_id: str = ""
    command: str = ""  #: empty where the slice alone is kept
    zones: tuple[str, ...] = ()  #: where else it may be made
    queued_resource: str = ""  #: that the slice came from
    recipe: str = ""
    activate: str = ""  #: the recipe whose programs the command finds first
    requirements: str = ""  #: a file here, by its full path
    indexes: tuple[str, ...] = ()
    editable: str = ""
    push: str = ""  #: a folder here, by its full path
    push_to: str = ""
    workdir: str = ""  #: a folder on the workers
    variables: tuple[str, ...] = ()
    variable_file: str = ""
    firewall: bool = True
    source_ranges: tuple[str, ...] = ()
    recoveries: int = 100  #: at most
    max_wait: float = 6 * 3600.0  #: seconds for capacity, each time
    delete_when_done: bool = False

    @property
    def places(self) -> tuple[str, ...]:
        """The zones in which it may be made: first the one that it was in when it was watched."""
        return (self.request.zone, *self.zones)

    @property
    def begun(self) -> tuple[str, str]:
        """The events that say that the command runs: it was started, or found."""
        return f"run {self.run_id} started", f"run {self.run_id} found"


@dataclass(frozen=True)
class Watch:
    """A watch as its file has it.

    `zone` is where the slice is, or was when it was lost, and `id` the API's id of that very slice.
    """

    spec: WatchSpec
    state: str = WATCHING
    stopped: bool = False  #: whether somebody has ended it
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
        """Whether it is to be taken up where nobody is at it."""
        return self.state != ENDED and not self.stopped

    def document(self) -> dict[str, Any]:
        """Return the public JSON value; without variables and metadata, which may be secret."""
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
            "history": [each.document() for each in self.history],
        }


class NotWritten(TpukitError):
    """The file of a watch cannot be written now."""


@dataclass(frozen=True)
class WatchFile:
    """The file of one watch. Only who `holds` it writes."""

    path: Path

    def load(self) -> Watch | None:
        """Return the watch, or None if there is none that can be read."""
        try:
            return _watch(recall_json(self.path))
        except (KeyError, TypeError, ValueError):
            return None

    def save(self, watch: Watch) -> None:
        """Write it, onto the disk itself; raise `NotWritten` where that cannot be done."""
        try:
            private_directory(self.path.parent)
            replace_file(self.path, json.dumps(asdict(watch)), durable=True)
        except OSError as error:
            raise NotWritten(
                f"cannot write {shown_path(self.path)}, without which nothing is begun",
                reason=error.strerror or "",
            ) from error

    @contextmanager
    def held(self) -> Iterator[None]:
        """Run the block as the one process that watches; raise `NameTaken` if another one does."""
        private_directory(self.path.parent)
        with ExitStack() as stack:
            try:
                stack.enter_context(exclusively(self._lock, wait=False))
            except BlockingIOError:
                name, process = self.path.name.partition(".")[0], self.process() or "unknown"
                raise NameTaken(
                    f"slice {name} is being watched already, by process {process}",
                    fix=Fix.command("tpukit", "watch", name, "--stop", note="ends that watch"),
                ) from None
            self._lock.write_text(str(os.getpid()))
            yield

    def process(self) -> int | None:
        """Return the number of the process that is at it, or None where there is none."""
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
        """What a detached watch has said."""
        return self.path.with_suffix(".log")

    @property
    def _lock(self) -> Path:
        return self.path.with_suffix(".lock")


@dataclass(frozen=True)
class WatchFiles:
    """The watches of one project of one API on this machine."""

    folder: Path
    endpoint: str
    project: str

    def of(self, zone: str, name: str) -> WatchFile:
        """Return the file of the watch of a slice, which may be there already.

        A watch keeps its file when its slice is made again in another zone.
        """
        for file, _ in self.named(name, zone):
            return file
        taken = {file.path for file, _ in self.all()}
        stems = (f"{name}.{zone}", *(f"{name}.{zone}.{number}" for number in range(2, 100)))
        paths = (self.folder / f"{stem}.{self._place}.json" for stem in stems)
        return WatchFile(next(path for path in paths if path not in taken))

    def named(self, name: str, zone: str = "") -> list[tuple[WatchFile, Watch]]:
        """Return the watches of slices of that name that may be in a zone by now, or in any."""
        return [
            (file, watch)
            for file, watch in self.all()
            if watch.name == name
            and zone in ("", watch.zone, *(watch.spec.places if watch.state == RECOVERING else ()))
        ]

    def all(self) -> list[tuple[WatchFile, Watch]]:
        """Return every watch that can be read, by the names of their slices."""
        files = [WatchFile(each) for each in sorted(self.folder.glob(f"*.{self._place}.json"))]
        return [(each, watch) for each in files if (watch := each.load())]

    @property
    def _place(self) -> str:
        return hashlib.sha256(f"{self.endpoint}\n{self.project}".encode()).hexdigest()[:8]


@dataclass
class Record:
    """The watch at hand and its file, which is written at every change."""

    file: WatchFile
    watch: Watch
    now: Callable[[], float]  #: the seconds since the epoch

    def note(self, event: str, detail: str = "", **changes: Any) -> None:
        """Change the watch and add to its history; raise `NotWritten` where that is not written."""
        happened = Event(event, detail, round(self.now(), 3))
        self.change(history=(*self.watch.history, happened), **changes)

    def change(self, **changes: Any) -> None:
        """Change the watch; raise `NotWritten` if that cannot be written."""
        watch = replace(self.watch, **changes)
        self.file.save(watch)
        self.watch = watch


def request_of(slice_: Slice) -> SliceRequest:
    """Return the request that makes such a slice again.

    It lacks the labels of one create and the tag of the slice's rule. It keeps the slice's end: the
    next one has no more time.
    """
    once = (naming.NONCE, naming.SEARCH, lifetime.CREATED, CAPACITY)
    labels = {key: value for key, value in slice_.labels.items() if key not in once}
    tags = tuple(each for each in slice_.tags if each != ssh_rule.rule_name(slice_))
    return replace(slice_.request, labels=labels, tags=tags)


def refreshed(request: SliceRequest, slice_: Slice) -> SliceRequest:
    """Return the request with the labels, tags, metadata and data disks that the slice has now."""
    if slice_.unreadable:
        return request
    now = request_of(slice_)
    parts = SliceChange(now.labels, now.tags, now.metadata, now.data_disks).parts
    return replace(request, **parts)


def _watch(document: Mapping[str, Any]) -> Watch:
    spec, request = document["spec"], document["spec"]["request"]
    disks = tuple(DataDisk(**each) for each in request["data_disks"])
    made = SliceRequest(**{**_tuples(request), "data_disks": disks})
    history = tuple(Event(**each) for each in document["history"])
    whole = WatchSpec(**{**_tuples(spec), "request": made})
    return Watch(**{**_tuples(document), "spec": whole, "history": history})


def _tuples(document: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: tuple(value) if isinstance(value, list) else value for key, value in document.items()
    }

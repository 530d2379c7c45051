"""Archives that a worker sent, unpacked without believing a name in them."""

from __future__ import annotations

import io
import os
import shutil
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

from tpukit.errors import SecurityRefusal, TpukitError
from tpukit.remote.transfer.payload import pieces
from tpukit.text import one_line, shown_path

#: More than any header of an honest archive; a hostile one could ask for all memory.
_LARGEST_HEADER = 1 << 20
_CHUNK = 1 << 20

#: Says whether a member of this name, in its components, was asked for.
Expected = Callable[[tuple[str, ...]], bool]


def unpack(
    archive: Path,
    target: Path,
    expected: Expected = lambda parts: True,
    *,
    sparse: bool = False,
) -> list[str]:
    """Unpack a tar archive into the folder `target`, which is made; nothing is left by half.

    Returns the names of symbolic links that lead out of the target, which are left out. Zeros
    become holes if the files are `sparse`.

    Members go into a new folder beside the target first: folders and files, then links, so that
    nothing is ever written through a link; then each is renamed into place.

    Raises:
        SecurityRefusal: a name or a hard link leads out of the target, or was not asked for, or a
            member is neither file, folder nor link. Nothing of the archive reached the target.
        TpukitError: it is no archive, or what is in the target already stands in the way.
    """
    # On the target's file system; whoever was killed may have left it.
    stage = (target if target.is_dir() else target.parent) / f"{archive.stem}.new"
    shutil.rmtree(stage, ignore_errors=True)
    try:
        stage.mkdir(0o700, parents=True)
        left_out = _fill(stage, archive, expected, sparse)
        _merge(stage, target)
    # Its times may be no times; tarfile calls itself for each header that is about the next one.
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        raise TpukitError("the worker sent a broken archive", reason=str(error)) from error
    except OSError as error:
        raise unwritable(error) from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return left_out


def _merge(source: Path, target: Path) -> None:
    """Move all that is in a folder into another one, which is made; files there are replaced."""
    if not os.path.lexists(target):
        target.mkdir(stat.S_IMODE(source.stat().st_mode))
    for each in sorted(source.iterdir()):
        place = target / each.name
        if each.is_symlink() or not each.is_dir() or not os.path.lexists(place):
            each.replace(place)
        elif place.is_symlink():
            raise TpukitError(f"{shown_path(place)} is a symbolic link: nothing goes through it")
        else:
            _merge(each, place)


def _fill(stage: Path, archive: Path, expected: Expected, sparse: bool) -> list[str]:
    links: list[tuple[Path, str]] = []
    folders = {stage: 0o755}
    with _Bounded(io.FileIO(archive)) as file, tarfile.open(fileobj=file, mode="r:") as opened:
        while (member := opened.next()) is not None:
            opened.members = []  # type: ignore[attr-defined]  # it keeps every one that it has seen
            parts = _parts(member.name)
            if parts and not expected(parts):
                raise _refusal(member.name, "was not asked for")
            place = stage.joinpath(*parts)
            place.parent.mkdir(parents=True, exist_ok=True)
            if member.issym():
                links.append((place, member.linkname))
            elif member.isdir():
                place.mkdir(exist_ok=True)
                folders[place] = member.mode & 0o755 | 0o700
            elif member.islnk():
                # A second name of a file that came before.
                os.link(stage.joinpath(*_parts(member.linkname)), place, follow_symlinks=False)
            elif member.isreg() and not member.issparse() and parts:
                _write(opened, member, place, sparse)
            else:
                raise _refusal(member.name, "is no file, folder or link")
    for place, mode in folders.items():
        place.chmod(mode)
    # There is no link yet: what is a folder now is a real one.
    inside = [_stays_inside(place, destination, stage) for place, destination in links]
    for (place, destination), stays in zip(links, inside, strict=True):
        if stays:
            os.symlink(destination, place)
    left_out = zip(links, inside, strict=True)
    return [str(place.relative_to(stage)) for (place, _), stays in left_out if not stays]


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, place: Path, sparse: bool) -> None:
    source = archive.extractfile(member)
    assert source is not None
    mode = member.mode & 0o755 | 0o600
    # A name that comes twice is refused: O_EXCL.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(place, flags, mode), "wb") as file:
        if not sparse:
            shutil.copyfileobj(source, file, _CHUNK)
        else:
            for chunk in iter(lambda: source.read(_CHUNK), b""):
                for piece in pieces(chunk, 0):
                    file.write(piece) if piece.strip(b"\0") else file.seek(len(piece), os.SEEK_CUR)
            file.truncate()
    os.utime(place, (member.mtime, member.mtime))


def _parts(name: str) -> tuple[str, ...]:
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise _refusal(name, "leads out of the target")
    return parts


def _stays_inside(link: Path, destination: str, stage: Path) -> bool:
    """Return True if a link leads to what is inside, whatever the links on its way are.

    `..` counts from a real folder: after the name of another link, or of what may become one in
    the target, it would count from wherever that leads.
    """
    if not destination or destination.startswith("/") or "\0" in destination:
        return False
    place = link.parent
    for part in destination.split("/"):
        if part == "..":
            if place == stage or not place.is_dir():
                return False
            place = place.parent
        elif part != ".":
            place /= part
    return True


class _Bounded(io.BufferedReader):
    """A file that tarfile reads headers from, none of them large."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= _LARGEST_HEADER:
            raise tarfile.ReadError("a header is too large")
        return super().read(size)


def _refusal(name: str, what: str) -> SecurityRefusal:
    what = f"the worker sent {one_line(name)[:200]}, which {what}"
    return SecurityRefusal(what, why="nothing of its archive was kept")


def unwritable(error: OSError, path: Path | None = None) -> TpukitError:
    """Return what says that a file, or the one that the error names, cannot be written."""
    found = path or error.filename2 or error.filename  # what is renamed is not what is in the way
    where = f" {shown_path(Path(found))}" if isinstance(found, str | Path) else ""
    return TpukitError(f"cannot write{where}", reason=error.strerror or str(error))

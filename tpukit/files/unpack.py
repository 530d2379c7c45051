"""Unpacks archives from a worker, without trusting the names in them."""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

from tpukit.agent import archives, placing
from tpukit.agent.archives import Unpacked
from tpukit.errors import Fix, SecurityRefusal, TpukitError
from tpukit.text import one_line, shown_path

#: Returns True if a member with these name components was requested.
Expected = Callable[[tuple[str, ...]], bool]


def unpack(
    archive: Path, target: Path, expected: Expected = lambda parts: True, *, sparse: bool = False
) -> Unpacked:
    """Unpack a tar archive into the folder `target`, and create the folder if necessary.

    Symbolic links that lead out of the target are left out. The members go first into a temporary
    folder on the target's file system; then each is renamed into place.

    Raises:
        SecurityRefusal: a name or a hard link leads out of the target or was not requested, or a
            member is neither file, folder nor link. Nothing in the target was changed.
        TpukitError: the archive is broken, or existing files in the target are in the way.
    """
    # It may exist: a killed process leaves it behind.
    stage = (target if target.is_dir() else target.parent) / f"{archive.stem}.new"
    shutil.rmtree(stage, ignore_errors=True)
    try:
        stage.mkdir(0o700, parents=True)
        unpacked = archives.unpack(
            str(archive), str(stage), sparse=sparse, confined=True, expects=expected
        )
        _merge(stage, target)
    except archives.Unsafe as error:
        what = f"the worker sent {one_line(error.name)[:200]}, which {error.reason}"
        raise SecurityRefusal(what, why="nothing of its archive was kept") from error
    # OverflowError: a time is out of range. RecursionError: tarfile recurses for chained headers.
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        raise TpukitError("the worker sent a broken archive", reason=str(error)) from error
    except OSError as error:
        raise unwritable(error) from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return unpacked


def _merge(source: Path, target: Path) -> None:
    """Move the contents of a folder into another one, and replace files of the same names."""
    if not target.is_dir():
        target.mkdir(stat.S_IMODE(source.stat().st_mode))
    for new in sorted(source.iterdir()):
        place = target / new.name
        if new.is_symlink() or not new.is_dir() or not os.path.lexists(place):
            placing.check_replaceable(str(place))
            new.replace(place)
        elif place.is_symlink():
            raise link_in_the_way(place)
        else:
            _merge(new, place)


def link_in_the_way(place: Path) -> TpukitError:
    """Return the error for a symbolic link in the place of a folder."""
    return TpukitError(
        f"{shown_path(place)} is a symbolic link: nothing goes through it",
        fix=Fix(note="copy to the folder that it leads to, or remove the link"),
    )


def unwritable(error: OSError, path: Path | None = None) -> TpukitError:
    """Return the error for a file that cannot be written: `path`, or the file in the error."""
    named = path or error.filename2 or error.filename  # after a rename, the target is in the way
    where = f" {shown_path(Path(named))}" if isinstance(named, str | Path) else ""
    return TpukitError(f"cannot write{where}", reason=error.strerror or str(error))

"""Archives that a worker sent, unpacked beside the target without believing a name in them."""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

from tpukit.agent import archives
from tpukit.agent.archives import Unpacked
from tpukit.errors import SecurityRefusal, TpukitError
from tpukit.text import one_line, shown_path

#: Says whether a member of this name, in its components, was asked for.
Expected = Callable[[tuple[str, ...]], bool]


def unpack(
    archive: Path, target: Path, expected: Expected = lambda parts: True, *, sparse: bool = False
) -> Unpacked:
    """Unpack a tar archive into the folder `target`, which is made; nothing is left by half.

    Symbolic links that lead out of the target are left out. Members go into a new folder beside the
    target first; then each is renamed into place.

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
        unpacked = archives.unpack(
            str(archive), str(stage), sparse=sparse, confined=True, expects=expected
        )
        _merge(stage, target)
    except archives.Unsafe as error:
        what = f"the worker sent {one_line(error.name)[:200]}, which {error.reason}"
        raise SecurityRefusal(what, why="nothing of its archive was kept") from error
    # Its times may be no times; tarfile calls itself for each header that is about the next one.
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        raise TpukitError("the worker sent a broken archive", reason=str(error)) from error
    except OSError as error:
        raise unwritable(error) from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return unpacked


def _merge(source: Path, target: Path) -> None:
    """Move all that is in a folder into another one, which is made; files there are replaced."""
    if not os.path.lexists(target):
        target.mkdir(stat.S_IMODE(source.stat().st_mode))
    for new in sorted(source.iterdir()):
        place = target / new.name
        if new.is_symlink() or not new.is_dir() or not os.path.lexists(place):
            new.replace(place)
        elif place.is_symlink():
            raise TpukitError(f"{shown_path(place)} is a symbolic link: nothing goes through it")
        else:
            _merge(new, place)


def unwritable(error: OSError, path: Path | None = None) -> TpukitError:
    """Return what says that a file, or the one that the error names, cannot be written."""
    named = path or error.filename2 or error.filename  # what is renamed is not what is in the way
    where = f" {shown_path(Path(named))}" if isinstance(named, str | Path) else ""
    return TpukitError(f"cannot write{where}", reason=error.strerror or str(error))

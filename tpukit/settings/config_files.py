"""The files with settings: tpukit.toml, config.toml and gcloud's INI files."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tpukit.errors import BadInput, Fix, SecurityRefusal
from tpukit.settings.table import BY_NAME, check_ranges, check_seconds, check_switch
from tpukit.text import one_line, shown_path

PROJECT_FILE = "tpukit.toml"
#: A limit, so that a huge file in a cloned project cannot hold up every command.
_MOST_BYTES = 1024 * 1024


def project_file(directory: Path, home: Path | None) -> Path | None:
    """Return the nearest tpukit.toml from `directory` up to the root of its git tree, or to home.

    Outside of both it looks only in `directory`: another user may own the folders above.
    """
    resolved = home.resolve() if home else None
    paths = (folder / PROJECT_FILE for folder in _searched(directory.resolve(), resolved))
    return next((path for path in paths if os.path.exists(path)), None)


def project_root(directory: Path, home: Path | None) -> Path:
    """Return the folder of the tpukit.toml for `directory`, or `directory` if there is none."""
    file = project_file(directory, home)
    return file.parent if file else directory


def _searched(directory: Path, home: Path | None) -> Sequence[Path]:
    folders = [directory, *directory.parents]
    for index, folder in enumerate(folders):
        if folder == home or os.path.exists(folder / ".git"):
            return folders[: index + 1]
    return [directory]


def parse_toml(path: Path, text: str, refused: Collection[str] = ()) -> dict[str, str]:
    """Return the settings in the text of a TOML file, with lists joined by commas.

    Raises:
        BadInput: it contains anything else; the error names file, line and key.
        SecurityRefusal: it contains one of the `refused` keys.
    """
    shown = shown_path(path)
    table = toml_table(shown, text, Fix(note=f"edit {shown}"))
    for key in table:
        _check_key(_place(path, text, key), key, refused)
    return {key: _text_value(_place(path, text, key), key, value) for key, value in table.items()}


def toml_table(shown: str, text: str, fix: Fix) -> dict[str, Any]:
    """Return the table in a TOML file; raise `BadInput`, which calls the file `shown`."""
    import tomllib

    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadInput(f"{shown} is not TOML", reason=one_line(str(error)), fix=fix) from error


def _check_key(place: str, key: str, refused: Collection[str]) -> None:
    if key in refused:
        raise SecurityRefusal(
            f"{place}: {key} cannot be set by a project file",
            why="the author of the project could send your credentials elsewhere",
            fix=Fix(note=f"set TPUKIT_{key.upper()}, or put {key} into your own config.toml"),
        )
    if key not in BY_NAME:
        import difflib

        near = difflib.get_close_matches(key, BY_NAME, n=1)
        raise BadInput(
            f"{place}: there is no setting {one_line(key)}",
            reason="" if near else f"the settings are {', '.join(BY_NAME)}",
            fix=Fix(note=f"did you mean {near[0]}?" if near else f"remove {one_line(key)}"),
        )


def _text_value(place: str, key: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) and BY_NAME[key].check is check_switch:
        return "yes" if value else "no"
    if type(value) is int and BY_NAME[key].check is check_seconds:
        return str(value)
    many = BY_NAME[key].check is check_ranges
    if many and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    kind = "a list of strings" if many else "a string"
    raise BadInput(
        f"{place}: {key} is not {kind}",
        reason=f"it is {one_line(repr(value))[:60]}",
        fix=Fix(note=f"write {key} = " + ('["203.0.113.7/32"]' if many else '"…"')),
    )


def _place(path: Path, text: str, key: str) -> str:
    """Return `FILE, line N` for a key, or `FILE` if no line starts with it."""
    start = re.compile(rf"\s*\[*\s*[\"']?{re.escape(key)}[\"']?\s*[=.\]]")
    for number, line in enumerate(text.splitlines(), 1):
        if start.match(line):
            return f"{shown_path(path)}, line {number}"
    return shown_path(path)


def read_gcloud(environ: Mapping[str, str], home: Path | None) -> tuple[str, Mapping[str, str]]:
    """Return the name of gcloud's active configuration, and its values by `section/property`.

    `gcloud topic configurations` describes the files. The name NONE means no configuration.

    Raises:
        BadInput: a file is unreadable, or the environment names a configuration that does not
            exist (gcloud would treat it as empty).
    """
    folder = environ.get("CLOUDSDK_CONFIG")
    if not folder and home is None:
        return "", {}
    directory = Path(folder) if folder else Path(home or "") / ".config" / "gcloud"
    asked = environ.get("CLOUDSDK_ACTIVE_CONFIG_NAME", "")
    name = asked or (read_text(directory / "active_config") or "").strip() or "default"
    if name == "NONE":
        return name, {}
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise BadInput(
            f'"{one_line(name)[:60]}" does not name a gcloud configuration',
            reason="CLOUDSDK_ACTIVE_CONFIG_NAME"
            if asked
            else shown_path(directory / "active_config"),
            fix=Fix.command("gcloud", "config", "configurations", "list"),
        )
    path = directory / "configurations" / f"config_{name}"
    text = read_text(path)
    if text is None and asked:
        raise BadInput(
            f"there is no gcloud configuration {name}",
            reason=f"CLOUDSDK_ACTIVE_CONFIG_NAME, {shown_path(path)}",
            fix=Fix.command("gcloud", "config", "configurations", "list"),
        )
    return name, dict(_properties(path, text or ""))


def _properties(path: Path, text: str) -> Iterator[tuple[str, str]]:
    import configparser

    parser = configparser.ConfigParser(
        interpolation=None, strict=False, allow_no_value=True, default_section=""
    )
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise BadInput(
            f"{shown_path(path)} is not a gcloud configuration",
            reason=one_line(str(error)),
            fix=Fix.command("gcloud", "config", "configurations", "list"),
        ) from error
    for section in parser.sections():
        for key, value in parser.items(section):
            yield f"{section}/{key}", value or ""


def read_text(path: Path) -> str | None:
    """Return the text of a regular file, or None if there is no such file.

    Raises `BadInput` if the file is a folder or a pipe, is larger than 1 MiB, is not UTF-8, or
    cannot be read.
    """
    try:
        # `Path.exists` is False after any error since Python 3.14: a file would be ignored.
        if not stat.S_ISREG(path.stat().st_mode):  # reading a pipe would never end
            raise BadInput(
                f"{shown_path(path)} is not a file", fix=Fix(note=f"remove {shown_path(path)}")
            )
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise BadInput(
                f"{shown_path(path)} is too large",
                reason="the limit is 1 MiB",
                fix=Fix(note=f"shorten {shown_path(path)}"),
            )
        return content.decode("utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{shown_path(path)} is not UTF-8 text",
            reason=f"byte {error.start}",
            fix=Fix(note="save it as UTF-8"),
        ) from error
    except OSError as error:
        raise BadInput(
            f"{shown_path(path)} cannot be read",
            reason=error.strerror or "",
            fix=Fix.command("ls", "-ld", str(path), note="shows its permissions"),
        ) from error

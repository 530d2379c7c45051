"""The user's own settings: config.toml, or the file of a profile beside it.

A change keeps all other lines of the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from tpukit.errors import BadInput, Fix
from tpukit.paths import Paths, private_directory, replace_file
from tpukit.settings.config_files import parse_toml, read_text
from tpukit.settings.table import BY_NAME, check_profile
from tpukit.text import one_line, shown_path


def own_file(paths: Paths, profile: str) -> Path:
    """Return the path of config.toml, or of a profile's file; either may not exist.

    Raises `BadInput` for an impossible name.
    """
    return paths.profile_file(check_profile(profile)) if profile else paths.config_file


def read_own_file(paths: Paths, profile: str, *, may_be_new: bool = False) -> Mapping[str, str]:
    """Return the values in the user's own file.

    Raises `BadInput` if there is no such profile, unless it `may_be_new`.
    """
    path = own_file(paths, profile)
    text = read_text(path)
    if text is None and profile and not may_be_new:
        raise no_profile(
            paths,
            profile,
            fix=Fix.command("tpukit", "config", "list", note="lists your profiles"),
            otherwise=Fix.command("tpukit", "init", "--profile", profile, note="makes it"),
        )
    return parse_toml(path, text or "")


def no_profile(paths: Paths, profile: str, fix: Fix, otherwise: Fix | None = None) -> BadInput:
    """Return the error for a profile that does not exist; it names the one that was meant."""
    meant = nearest_profile(paths, profile)
    reason = f"did you mean {meant}?" if meant else shown_path(own_file(paths, profile))
    what = f"there is no profile {profile}"
    return BadInput(what, reason=reason, fix=fix, otherwise=otherwise)


def nearest_profile(paths: Paths, profile: str) -> str:
    """Return the user's profile whose name is nearest to a misspelled one, or ""."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(profile, profiles(paths), n=1)), "")


def profiles(paths: Paths) -> list[str]:
    """Return the names of the user's profiles, sorted."""
    files = paths.config.glob(paths.profile_file("*").name)
    return sorted(file.stem.removeprefix("config-") for file in files)


def known(name: str) -> str:
    """Return the name of a setting; raise `BadInput` if there is none of that name."""
    if name not in BY_NAME:
        fix = Fix.command("tpukit", "config", "explain", note="lists the settings")
        raise BadInput(f"there is no setting {one_line(name)}", fix=fix)
    return name


def checked(name: str, value: str) -> str:
    """Return the value to write for a setting; raise `BadInput` if it is invalid."""
    return BY_NAME[known(name)].check(value)


def set_value(path: Path, name: str, value: str) -> None:
    """Set one value; raise `BadInput` if it is invalid, or if the file cannot be changed."""
    value = checked(name, value)
    _change(path, name, f"{name} = {json.dumps(value)}\n", value)


def unset_value(path: Path, name: str) -> bool:
    """Remove one value and return True, or False if the file has none."""
    if known(name) not in parse_toml(path, read_text(path) or ""):
        return False
    _change(path, name, "", None)
    return True


def _change(path: Path, name: str, line: str, value: str | None) -> None:
    text = read_text(path) or ""
    own = re.compile(rf"^[ \t]*{name}[ \t]*=.*\n?", re.MULTILINE)
    # Without the value, the line comes first: a later one could belong to a table.
    changed = own.sub(lambda _: line, text, count=1) if own.search(text) else line + text
    before = parse_toml(path, text)
    after = {key: other for key, other in before.items() if key != name}
    after |= {} if value is None else {name: value}
    try:
        right = parse_toml(path, changed) == after
    except BadInput:
        right = False
    if not right:
        fix = Fix(note="change it there with an editor")
        raise BadInput(f"{name} in {shown_path(path)} has more than one line", fix=fix)
    private_directory(path.parent)
    file = path.resolve()  # it may be a link into a repository of dotfiles
    replace_file(file, changed, file.stat().st_mode & 0o777 if file.exists() else 0o600)

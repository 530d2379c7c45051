"""Guest attributes: values that a worker publishes, and that survive its reboots.

Compute Engine documentation, "Set and query guest attributes": a namespace and a key, of letters,
digits, `_` and `-`, lead to a value of at most 256 KiB.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path

#: The largest value in bytes.
LARGEST_VALUE = 256 * 1024
_KEY = re.compile(r"[A-Za-z0-9_-]{1,128}/[A-Za-z0-9_.-]{1,128}")
_NAME = Path("etc", "guest-attributes.json")


def read_attributes(folder: Path) -> dict[str, str]:
    """Return a worker's values by `namespace/key`, or {} if the file is damaged."""
    with contextlib.suppress(OSError, ValueError):
        values = json.loads((folder / _NAME).read_text(encoding="utf-8"))
        if isinstance(values, dict):
            return {str(key): str(value) for key, value in values.items()}
    return {}


def write_attribute(folder: Path, key: str, value: str | None) -> bool:
    """Publish a value, or withdraw it if None; return False if `key` is not `namespace/key`."""
    if not _KEY.fullmatch(key):
        return False
    values = read_attributes(folder)
    values.pop(key, None)
    if value is not None:
        values[key] = value
    path = folder / _NAME
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(temporary, flags, 0o600), "w", encoding="utf-8") as file:
        json.dump(values, file)
    temporary.replace(path)
    return True

"""What a worker publishes of itself: guest attributes, which outlive its boots.

Compute Engine documentation, "Set and query guest attributes": a namespace and a key, of letters,
digits, `_` and `-`, lead to a value of at most 256 KiB.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path

#: Bytes of a value.
LARGEST_VALUE = 256 * 1024
_KEY = re.compile(r"[A-Za-z0-9_-]{1,128}/[A-Za-z0-9_.-]{1,128}")
_NAME = Path("etc", "guest-attributes.json")


def read_attributes(folder: Path) -> dict[str, str]:
    """Return what a worker published, by `namespace/key`; nothing where the file was damaged."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads((folder / _NAME).read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return {str(key): str(value) for key, value in found.items()}
    return {}


def write_attribute(folder: Path, key: str, value: str | None) -> bool:
    """Publish a value, or with None withdraw it; return False for what is no `namespace/key`."""
    if not _KEY.fullmatch(key):
        return False
    rest = {name: each for name, each in read_attributes(folder).items() if name != key}
    found = rest if value is None else {**rest, key: value}
    path = folder / _NAME
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(temporary, flags, 0o600), "w", encoding="utf-8") as file:
        json.dump(found, file)
    temporary.replace(path)
    return True

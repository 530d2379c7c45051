"""Host keys that were trusted on first use, like OpenSSH's accept-new, and are required later.

They are for organisations that hide guest attributes, and only with --accept-new-host-keys.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tpukit.errors import BadInput, SecurityRefusal
from tpukit.models import Slice
from tpukit.paths import exclusively, private_directory, read_own, replace_file
from tpukit.text import shown_path


@dataclass(frozen=True)
class PinnedKeys:
    """The host keys that this user has trusted on first use, by slice and worker."""

    directory: Path

    def of(self, slice_: Slice) -> Mapping[int, str]:
        """Return the trusted host key (`ssh-ed25519 AAAA…`) of each worker.

        Raises `BadInput` if the file is unreadable, `SecurityRefusal` if other users could write
        it.
        """
        path = self.path(slice_)
        try:
            document = json.loads(read_own(path))
            return {int(worker): str(key) for worker, key in document.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError) as error:
            raise BadInput(f"{shown_path(path)} cannot be read", reason=str(error)) from error

    def pin(self, slice_: Slice, worker: int, key: str) -> None:
        """Require this host key of a worker from now on.

        Raises `SecurityRefusal` if another host key has been stored in the meantime.
        """
        with exclusively(private_directory(self.directory) / "lock"):
            known = self.of(slice_)
            if known.get(worker, key) != key:
                raise SecurityRefusal(f"{slice_.name} worker {worker} has shown two host keys")
            replace_file(self.path(slice_), json.dumps({**known, worker: key}))

    def path(self, slice_: Slice) -> Path:
        """Return the file of a slice; a later slice of the same name has another file."""
        names = (slice_.project, slice_.zone, slice_.name, slice_.created)
        digest = hashlib.sha256("\n".join(names).encode()).hexdigest()
        return self.directory / f"{slice_.name}-{digest[:12]}.json"

"""Host keys that were taken at first sight, as OpenSSH's accept-new does, and hold from then on.

For organisations that hide guest attributes, and only if you ask for it.
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
    """The host keys that this account has taken at first sight, by slice and worker."""

    directory: Path

    def of(self, found: Slice) -> Mapping[int, str]:
        """Return the host key (`ssh-ed25519 AAAA…`) of each worker that has been seen.

        Raises `BadInput` if they cannot be read, `SecurityRefusal` if somebody else could have
        written them.
        """
        path = self.path(found)
        try:
            document = json.loads(read_own(path))
            return {int(worker): str(key) for worker, key in document.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError) as error:
            raise BadInput(f"{shown_path(path)} cannot be read", reason=str(error)) from error

    def pin(self, found: Slice, worker: int, key: str) -> None:
        """Hold a worker to this host key from now on.

        Raises `SecurityRefusal` where it was held to another one meanwhile.
        """
        with exclusively(private_directory(self.directory) / "lock"):
            known = self.of(found)
            if known.get(worker, key) != key:
                raise SecurityRefusal(f"{found.name} worker {worker} has shown two host keys")
            replace_file(self.path(found), json.dumps({**known, worker: key}))

    def path(self, found: Slice) -> Path:
        """Return the file of a slice; one that is made anew under the name has another."""
        names = (found.project, found.zone, found.name, found.created)
        digest = hashlib.sha256("\n".join(names).encode()).hexdigest()
        return self.directory / f"{found.name}-{digest[:12]}.json"

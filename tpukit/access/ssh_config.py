"""One file that the user's OpenSSH configuration includes, with a host for each worker.

With it VS Code, rsync, scp, sftp and mosh reach workers as strictly as tpukit does: pinned host
keys, our key and no other.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tpukit.errors import BadInput, Fix
from tpukit.paths import exclusively, private_directory, replace_file
from tpukit.text import one_line, shown_path

if TYPE_CHECKING:
    from tpukit.models import Slice
    from tpukit.remote.connection.openssh import OpenSsh
    from tpukit.remote.connection.target import Target

_HEAD = "# Written by tpukit ssh-config, which overwrites what is changed here.\n"
_BLOCK = re.compile(r"^# slice (\S+) (\S+) (\S+)\n(.*?)^# end\n", re.MULTILINE | re.DOTALL)
_INCLUDE = re.compile(r"^# tpukit: .*\nInclude .*\n\n?", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\$?")


@dataclass(frozen=True)
class Host:
    """One worker as OpenSSH knows it: its names, and where it answers."""

    names: tuple[str, ...]
    target: Target
    proxy: Sequence[str] = ()  #: words of the program that leads there


@dataclass(frozen=True)
class SshConfig:
    """Our file and the known hosts beside it, all in a folder for its owner alone."""

    directory: Path

    @property
    def path(self) -> Path:
        return self.directory / "config"

    def put(self, found: Slice, hosts: Sequence[Host], openssh: OpenSsh) -> None:
        """Write a slice's hosts, in place of what was there under its name."""
        from tpukit.remote.connection.keys import write_known_hosts

        head = f"# slice {_word(found.name)} {_word(found.project)} {_word(found.zone)}\n"
        known = self._known_hosts(found.name)
        text = "".join(_host_text(each, openssh, known) for each in hosts)
        with self._exclusively():
            others = [each for each in self._blocks() if each[1] != found.name]
            pins = [(each.target.alias, each.target.host_keys) for each in hosts]
            write_known_hosts(known, pins)
            self._write([*(block[0] for block in others), f"{head}{text}# end\n"])

    def forget(self, found: Slice) -> None:
        """Remove the hosts and pins of a slice that is gone, not of one so named elsewhere."""
        from tpukit.access.host_keys import alias

        self._remove(lambda block: block[1:4] == (found.name, found.project, found.zone))
        for worker in found.workers:
            self._known_hosts(alias(found, worker.index)).unlink(missing_ok=True)

    def remove(self, names: Sequence[str]) -> list[str]:
        """Remove the hosts of slices by name, or of all without one; return the slices' names."""
        return self._remove(lambda block: not names or block[1] in names)

    def _remove(self, gone: Callable[[tuple[str, ...]], bool]) -> list[str]:
        if not self.path.exists():
            return []
        with self._exclusively():
            blocks = self._blocks()
            removed = [block[1] for block in blocks if gone(block)]
            if removed:
                self._write([block[0] for block in blocks if not gone(block)])
            for name in removed:
                self._known_hosts(name).unlink(missing_ok=True)
        return removed

    def _blocks(self) -> list[tuple[str, ...]]:
        """Return (text, slice, project, zone, …) of what is there."""
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        return [(block[0], *block.groups()) for block in _BLOCK.finditer(text)]

    def _write(self, blocks: Sequence[str]) -> None:
        replace_file(self.path, _HEAD + "".join(f"\n{block}" for block in blocks), 0o600)

    def _known_hosts(self, name: str) -> Path:
        return self.directory / f"known_hosts.{_word(name)}"

    def _exclusively(self) -> AbstractContextManager[None]:
        return exclusively(private_directory(self.directory) / "lock")


@dataclass(frozen=True)
class UserConfig:
    """The user's own `~/.ssh/config`, of which two lines are ours."""

    path: Path

    def includes(self, ours: SshConfig) -> bool:
        """Tell whether our file is included."""
        return _include(ours) in self._text().splitlines()

    def install(self, ours: SshConfig, seconds: float) -> None:
        """Include our file, before all else: what OpenSSH reads first counts.

        `seconds` since the epoch date the comment.
        """
        day = datetime.fromtimestamp(seconds, UTC).date()
        comment = f"# tpukit: its slices' workers; added {day} by tpukit ssh-config --install"
        rest = _INCLUDE.sub("", self._text())
        self._write(f"{comment}\n{_include(ours)}\n\n{rest}")

    def uninstall(self) -> bool:
        """Take our lines out again; return whether there were any."""
        before = self._text()
        after = _INCLUDE.sub("", before)
        if after != before:
            self._write(after)
        return after != before

    def _text(self) -> str:
        try:
            return self.path.read_text(encoding="utf-8", errors="surrogateescape")
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise self._unusable(error) from error

    def _write(self, text: str) -> None:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Where a link leads is rewritten, not the link: dotfiles are often kept elsewhere.
            real = Path(os.path.realpath(self.path))
            mode = real.stat().st_mode & 0o777 if real.exists() else 0o600
            replace_file(real, text, mode)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> BadInput:
        return BadInput(
            f"{shown_path(self.path)} cannot be used", reason=error.strerror or str(error)
        )


def host_names(found: Slice, worker: int) -> tuple[str, ...]:
    """Return the names of a worker: `tpu.demo.2`, and `tpu.demo` too for worker 0.

    No slice's name has a dot, so that no two workers share a name; hosts of the user's own have
    other names.
    """
    own = f"tpu.{found.name}.{worker}"
    return (own.removesuffix(".0"), own) if worker == 0 else (own,)


def _host_text(host: Host, openssh: OpenSsh, known_hosts: Path) -> str:
    target = host.target
    _word(target.alias)
    if not _USER.fullmatch(target.user):
        raise BadInput(f"{one_line(target.user)!r} cannot be a user of an OpenSSH configuration")
    lines = {
        "HostName": _address(target.address),
        "Port": str(target.port),
        **openssh.options(target, known_hosts, host.proxy),
    }
    text = "".join(f"  {name} {value}\n" for name, value in sorted(lines.items()))
    return f"Host {' '.join(map(_word, host.names))}\n{text}"


def _include(ours: SshConfig) -> str:
    path = str(ours.path)
    # Include expands patterns, and in newer versions tokens and variables: ssh_config(5).
    if re.search(r'["*?\[%$\\\n]', path):
        raise BadInput(
            f"OpenSSH cannot include {one_line(path)}",
            fix=Fix(note="set TPUKIT_HOME to a directory with a plain name"),
        )
    return f'Include "{path}"'


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise BadInput(f"{one_line(text)!r} is no address of a worker") from None


def _word(text: str) -> str:
    if not _WORD.fullmatch(text):
        raise BadInput(f"{one_line(text)!r} cannot stand in an OpenSSH configuration")
    return text

"""A file for the user's OpenSSH configuration to include, with a host for each worker.

With it, VS Code, rsync, scp, sftp and mosh reach workers as strictly as tpukit does, with pinned
host keys and only our key.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Iterable, Sequence
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
    from tpukit.ssh.openssh import OpenSsh
    from tpukit.ssh.target import Target

_HEAD = "# Written by tpukit ssh-config, which overwrites your changes.\n"
_BLOCK = re.compile(r"^# slice (\S+) (\S+) (\S+)\n(.*?)^# end\n", re.MULTILINE | re.DOTALL)
_INCLUDE = re.compile(r"^# tpukit: .*\nInclude .*\n\n?", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\$?")


@dataclass(frozen=True)
class Host:
    """One worker in OpenSSH's configuration: its names, target and proxy."""

    names: tuple[str, ...]
    target: Target
    proxy: Sequence[str] = ()  #: the proxy program's command line


@dataclass(frozen=True)
class SshConfig:
    """Our configuration file and the file of known hosts, in a private folder."""

    directory: Path

    @property
    def path(self) -> Path:
        return self.directory / "config"

    def put(self, slice_: Slice, hosts: Sequence[Host], openssh: OpenSsh) -> None:
        """Write a slice's hosts; they replace the hosts of another slice of its name."""
        from tpukit.ssh.keys import write_known_hosts

        head = f"# slice {_word(slice_.name)} {_word(slice_.project)} {_word(slice_.zone)}\n"
        known = self._known_hosts(slice_.name)
        text = "".join(_host_text(host, openssh, known) for host in hosts)
        with self._exclusively():
            others = [block for block in self._blocks() if block[1] != slice_.name]
            pins = [(host.target.alias, host.target.host_keys) for host in hosts]
            write_known_hosts(known, pins)
            self._write([*(block[0] for block in others), f"{head}{text}# end\n"])

    def forget(self, slice_: Slice) -> None:
        """Remove the hosts and pins of a deleted slice, but not of a namesake elsewhere."""
        from tpukit.access.host_keys import alias

        self._remove(lambda block: block[1:4] == (slice_.name, slice_.project, slice_.zone))
        for worker in slice_.workers:
            self._known_hosts(alias(slice_, worker.index)).unlink(missing_ok=True)

    def remove(self, names: Sequence[str]) -> list[str]:
        """Remove the hosts of slices by name, or of all without one; return the slices' names."""
        return self._remove(lambda block: not names or block[1] in names)

    def stale(self, slices: Iterable[Slice], project: str) -> list[str]:
        """Return the names of hosts of a project's slices that no longer exist."""
        living = {(slice_.name, slice_.zone) for slice_ in slices}
        ours = [block for block in self._blocks() if block[2] == project]
        return [block[1] for block in ours if (block[1], block[3]) not in living]

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
        """Return (text, slice, project, zone, …) for each block of the file."""
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        return [(block[0], *block.groups()) for block in _BLOCK.finditer(text)]

    def _write(self, blocks: Sequence[str]) -> None:
        replace_file(self.path, _HEAD + "".join(f"\n{block}" for block in blocks), 0o600)

    def _known_hosts(self, name: str) -> Path:
        return self.directory / f"known_hosts.{_word(name)}"

    def _exclusively(self) -> AbstractContextManager[object]:
        return exclusively(private_directory(self.directory) / "lock")


@dataclass(frozen=True)
class UserConfig:
    """The user's `~/.ssh/config`, in which two lines are ours."""

    path: Path

    def includes(self, ours: SshConfig) -> bool:
        """Return True if it includes our file."""
        return _include(ours) in self._text().splitlines()

    def install(self, ours: SshConfig, seconds: float) -> None:
        """Include our file at the top, because OpenSSH uses the first value that it reads.

        The comment has the date of `seconds` since the epoch.
        """
        day = datetime.fromtimestamp(seconds, UTC).date()
        comment = f"# tpukit: its slices' workers; added {day} by tpukit ssh-config --install"
        rest = _INCLUDE.sub("", self._text())
        self._write(f"{comment}\n{_include(ours)}\n\n{rest}")

    def uninstall(self) -> bool:
        """Remove our lines; return True if there were any."""
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
            # Rewrite the target of a link, not the link: dotfiles are often kept elsewhere.
            real = Path(os.path.realpath(self.path))
            mode = real.stat().st_mode & 0o777 if real.exists() else 0o600
            replace_file(real, text, mode)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> BadInput:
        return BadInput(
            f"{shown_path(self.path)} cannot be used", reason=error.strerror or str(error)
        )


def host_names(slice_: Slice, worker: int) -> tuple[str, ...]:
    """Return the names of a worker: `tpu.demo.2`, and `tpu.demo` too for worker 0.

    Names of slices have no dots, so no two workers share a name.
    """
    own = f"tpu.{slice_.name}.{worker}"
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

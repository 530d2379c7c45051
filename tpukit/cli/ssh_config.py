"""`tpukit ssh-config`: workers as hosts of the system's OpenSSH, and of all that uses it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from tpukit.access.ssh_config import Host, SshConfig, UserConfig, host_names
from tpukit.cli import parameters as flag
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View
from tpukit.errors import BadInput, Fix
from tpukit.paths import home_directory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tpukit.models import Slice
    from tpukit.remote.connection.openssh import OpenSsh

Names = Annotated[
    list[str] | None, Argument(metavar="[NAME…]", help="Slices; default: every READY one.")
]
Install = Annotated[bool, Option("--install", help="Include the file in ~/.ssh/config, for good.")]
Remove = Annotated[
    bool, Option("--remove", help="Remove these hosts; without NAME all, and the inclusion too.")
]

Persist = Annotated[
    str, Option(metavar="DURATION", help="Keep a connection so long for the next use: 10m.")
]


def ssh_config(
    toolkit: Toolkit,
    names: Names = None,
    install: Install = False,
    remove: Remove = False,
    persist: Persist = "",
    timeout: flag.Timeout = "60s",
    route: flag.RouteFlags = flag.EXTERNAL,
) -> View:
    """Let VS Code, rsync, scp and mosh reach workers.

    Writes hosts tpu.NAME (worker 0) and tpu.NAME.N, with pinned host keys, to a file of tpukit's
    own. Deleting a slice removes its hosts.

    Examples:
      tpukit ssh-config demo --install
      rsync -a data/ tpu.demo.2:data/
      tpukit ssh-config demo --persist 10m
    """
    toolkit = toolkit.by(route)
    ours = SshConfig(toolkit.paths.ssh)
    user = UserConfig(home_directory(toolkit.environ) / ".ssh" / "config")
    if remove:
        if install:
            raise BadInput("--install and --remove contradict each other")
        return _removed(ours, user, names or [])
    found = _slices(toolkit, names or [])
    patience, openssh = flag.seconds(timeout), toolkit.openssh
    if persist:
        openssh = replace(openssh, persist=int(flag.seconds(persist, "--persist")))
    hosts = [host for each in found for host in _put(toolkit, ours, each, patience, openssh)]
    if install and not user.includes(ours):
        toolkit.confirm(f"put a line that includes {ours.path} at the top of {user.path}?")
        user.install(ours, toolkit.clock.time())
    staying = ("--persist", persist) if persist else ()
    again = Fix.command("tpukit", "ssh-config", *(names or ()), *route.words, *staying, "--install")
    return _view(ours.path, hosts, None if user.includes(ours) else again)


def _slices(toolkit: Toolkit, names: list[str]) -> list[Slice]:
    if names:
        return [toolkit.find(name) for name in dict.fromkeys(names)]
    listed = toolkit.provider.list(toolkit.flags.zone or "-")
    if listed.unreachable:
        silent = ", ".join(listed.unreachable)
        toolkit.console.warn(f"no answer from {silent}: slices there are left out")
    return [each for each in listed.slices if each.ready]


def _put(
    toolkit: Toolkit, ours: SshConfig, found: Slice, patience: float, openssh: OpenSsh
) -> list[Host]:
    workers = toolkit.workers(found, "all", patience, for_others=True)
    targets = [each.proved() for each in workers]
    hosts = [
        Host(host_names(found, each.worker), each, toolkit.dialer.proxy(each)) for each in targets
    ]
    ours.put(found, hosts, openssh)
    return hosts


def _removed(ours: SshConfig, user: UserConfig, names: list[str]) -> View:
    removed = ours.remove(names)
    uninstalled = not names and user.uninstall()
    document = {"removed": removed, "included": not uninstalled and user.includes(ours)}
    return View({"ssh_config": document}, rows=[[name] for name in removed])


def _view(path: Path, found: Sequence[Host], install: Fix | None) -> View:
    """Show the hosts, and how to include it where it is not."""
    keys = ("worker", "address", "port")
    documents = [
        {"names": list(each.names), **{key: getattr(each.target, key) for key in keys}}
        for each in found
    ]
    rows = [
        [each.names[-1], each.names[0], each.target.address, each.target.port] for each in found
    ]
    document = {"path": str(path), "included": not install, "hosts": documents}
    columns = ("HOST", "ALSO", "ADDRESS", "PORT")
    return View({"ssh_config": document}, columns, rows, next=(install,) if install else ())

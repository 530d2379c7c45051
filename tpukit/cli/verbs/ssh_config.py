"""`tpukit ssh-config`: let the system's OpenSSH, and programs that use it, reach workers."""

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

    from tpukit.cli.toolkit.reach import Reach
    from tpukit.models import Slice
    from tpukit.ssh.openssh import OpenSsh

Names = Annotated[
    list[str] | None, Argument(metavar="[NAME…]", help="Slices; default: every READY one.")
]
Install = Annotated[bool, Option("--install", help="Include the file in ~/.ssh/config.")]
Remove = Annotated[
    bool, Option("--remove", help="Remove these hosts; without NAME, all hosts and the include.")
]

Persist = Annotated[
    str, Option(metavar="DURATION", help="Keep unused connections open for this time: 10m.")
]


@flag.connecting
def ssh_config(
    toolkit: Toolkit,
    names: Names = None,
    install: Install = False,
    remove: Remove = False,
    persist: Persist = "",
    timeout: flag.Timeout = "60s",
) -> View:
    """Let VS Code, rsync, scp and mosh reach workers.

    Writes the hosts tpu.NAME (worker 0) and tpu.NAME.N with their host keys to tpukit's own file.
    When tpukit deletes a slice, it removes its hosts.

    Examples:
      tpukit ssh-config demo --install
      rsync -a data/ tpu.demo.2:data/
      tpukit ssh-config demo --persist 10m
    """
    ours = SshConfig(toolkit.paths.ssh)
    user = UserConfig(home_directory(toolkit.environ) / ".ssh" / "config")
    if remove:
        if install:
            raise BadInput("--install and --remove contradict each other")
        return _removed(ours, user, names or [])
    slices = _slices(toolkit, names or [])
    patience, openssh = flag.seconds(timeout), toolkit.reach.openssh
    if persist:
        openssh = replace(openssh, persist=int(flag.seconds(persist, "--persist")))
    hosts = [
        host for slice_ in slices for host in _put(toolkit.reach, ours, slice_, patience, openssh)
    ]
    if install and not user.includes(ours):
        toolkit.questions.confirm(
            f"put a line that includes {ours.path} at the top of {user.path}?"
        )
        user.install(ours, toolkit.clock.time())
    staying = ("--persist", persist) if persist else ()
    again = Fix.command(
        "tpukit", "ssh-config", *(names or ()), *toolkit.route.words, *staying, "--install"
    )
    return _view(ours.path, hosts, None if user.includes(ours) else again)


def _slices(toolkit: Toolkit, names: list[str]) -> list[Slice]:
    if names:
        found = [slice_ for name in names for slice_ in toolkit.slices.find_named(name)]
        return list({(slice_.zone, slice_.name): slice_ for slice_ in found}.values())
    listed = toolkit.cloud.provider.list(toolkit.flags.zone or "-")
    if listed.unreachable:
        silent = ", ".join(listed.unreachable)
        toolkit.console.warn(f"no answer from {silent}: slices there are left out")
    return [slice_ for slice_ in listed.slices if slice_.ready]


def _put(
    reach: Reach, ours: SshConfig, slice_: Slice, patience: float, openssh: OpenSsh
) -> list[Host]:
    workers = reach.workers(slice_, "all", patience, for_others=True)
    targets = [worker.proved() for worker in workers]
    hosts = [
        Host(host_names(slice_, target.worker), target, reach.dialer.proxy(target))
        for target in targets
    ]
    ours.put(slice_, hosts, openssh)
    return hosts


def _removed(ours: SshConfig, user: UserConfig, names: list[str]) -> View:
    removed = ours.remove(names)
    uninstalled = not names and user.uninstall()
    document = {"removed": removed, "included": not uninstalled and user.includes(ours)}
    return View({"ssh_config": document}, rows=[[name] for name in removed])


def _view(path: Path, hosts: Sequence[Host], install: Fix | None) -> View:
    """Show the hosts; suggest the `install` command if there is one."""
    keys = ("worker", "address", "port")
    documents = [
        {"names": list(host.names), **{key: getattr(host.target, key) for key in keys}}
        for host in hosts
    ]
    rows = [
        [host.names[-1], host.names[0], host.target.address, host.target.port] for host in hosts
    ]
    document = {"path": str(path), "included": not install, "hosts": documents}
    columns = ("HOST", "ALSO", "ADDRESS", "PORT")
    return View({"ssh_config": document}, columns, rows, next=(install,) if install else ())

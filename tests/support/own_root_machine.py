"""A real worker whose root goes with the test: an ordinary user's, with sudo and real apt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.login_account import Account
from support.openssh_server import UbuntuServer, ubuntu_server
from tpukit.clock import Deadline, SystemClock
from tpukit.provision.provision_report import WorkerProvisionReport
from tpukit.provision.provisioning import provision_all
from tpukit.provision.undo import require_undone, undo_all
from tpukit.provision.wanted import Setups, Wanted, parse
from tpukit.provision.worker_jobs import ProvisionEvent
from tpukit.ssh.client import Connector
from tpukit.ssh.keys import KeyPair
from tpukit.ssh.worker import RemoteWorker
from tpukit.text import quote

#: Words of a program that gives a server such a root.
OWN_ROOT = (
    *("unshare", "--mount", "--propagation", "private"),
    *("sh", str(Path(__file__).with_name("own_root.sh"))),
)
#: Each file and folder: kind, mode, owner, target of a link; then what each file holds. What the
#: system itself writes anew at will is left out: caches, backups of the account files, boot order;
#: and the rights of tests that run beside this one.
LISTING = r"""
cd "$HOME" && set -- /etc "$HOME"
sudo find "$@" -regextype posix-extended \
    -regex '/etc/(ld.so.cache|[a-z]+-|\.pwd\.lock|sudoers\.d/tpukit.*)' \
    -prune -o -printf '%y %m %u %p %l\n' | grep -v '/\.tpukit/jobs/run' | sort
sudo find "$@" -type f ! -regex '/etc/ld.so.cache\|/etc/[a-z]*-\|/etc/sudoers.d/tpukit.*' \
    -exec sha256sum {} + | sort
"""
NOBODYS = Setups(Path("/nowhere"))


def wanted(*words: str) -> Wanted:
    return parse(words, NOBODYS)


def within(count: float = 500) -> Deadline:
    return Deadline.after(SystemClock(), count)


class Machine:
    """A worker with a root of its own, and what tests ask of it."""

    def __init__(self, server: UbuntuServer, connector: Connector) -> None:
        self.server = server
        self.remote = RemoteWorker(0, lambda: connector.connect(server.target(), within(60)))
        self.events: list[ProvisionEvent] = []

    def sh(self, line: str) -> str:
        """Return what a line for sh prints, without what .bashrc prints before it."""
        with self.remote.connect() as connection:
            words = quote([f"echo; echo BEGIN; {line}"])
            done = connection.run(f"sh -c {words}", deadline=within(120))
        assert done.ok, done.reason
        return done.text.partition("\nBEGIN\n")[2]

    def listing(self) -> set[str]:
        return set(self.sh(LISTING).splitlines())

    def apply(self, *words: str) -> WorkerProvisionReport:
        report = provision_all(
            [self.remote], wanted(*words), deadline=within(), on_event=self.events.append
        )
        return report.workers[0]

    def undo(self, *words: str) -> tuple[str, ...]:
        (report,) = require_undone(undo_all([self.remote], words, deadline=within()))
        return report.undone


@contextmanager
def own_root_machine(account: Account, key: KeyPair, connector: Connector) -> Iterator[Machine]:
    """Run one such worker: whatever becomes of /etc and /usr ends with it."""
    if not account.made:
        pytest.skip("no ordinary user can be made here: system steps are NOT checked")
    with ubuntu_server(account, key, OWN_ROOT) as server:
        yield Machine(server, connector)

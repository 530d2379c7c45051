"""What is in the way on a real worker is one cause with a fix; clients that die lose nothing."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from support.login_account import Account
from support.openssh_workers import OpenSshHost, openssh_workers, running
from support.own_root_machine import OWN_ROOT, own_root_machine, wanted, within
from support.processes import eventually
from support.small_recipe import SMALL

from tpukit.errors import ProvisionFailed
from tpukit.provision.apply import require_provisioned
from tpukit.provision.provisioning import provision_all
from tpukit.provision.requirements import ROOT, Requirements
from tpukit.provision.undo import require_undone, undo_all
from tpukit.provision.wanted import Wanted
from tpukit.ssh.client import Connector
from tpukit.ssh.keys import KeyPair

pytestmark = pytest.mark.full_size

#: What this machine's own installers need to reach an index, and so a worker's here.
_OWN = ("SSL_CERT_", "UV_", "PIP_", "HTTPS_PROXY")
#: Asks for no room before it begins: so it is found by who installs.
_HEEDLESS = replace(SMALL, releases=(replace(SMALL.releases[0], stand_in_disk_megabytes=0),))


def test_a_recipe_says_what_is_in_its_way_and_undo_leaves_nothing(
    account: Account, key: KeyPair, connector: Connector
) -> None:
    """Each: how it comes to be, the cause, the fix, and how it goes again."""
    room = "sudo mount -t tmpfs -o size=600k,uid=$(id -u),mode=755 none $HOME"
    cases = (
        (room, "no room left on the worker's disk", "make room there", "true"),
        ("cat /dev/zero >fill || :", "no room left", "make room there", "cd; sudo umount -l $HOME"),
        ("mkdir .tpukit; sudo chown root .tpukit", "be written", "yours", "sudo rm -r .tpukit"),
        ("chmod 500 $HOME", "cannot be written", "must be yours", "chmod 750 $HOME"),
    )
    with own_root_machine(account, key, connector) as machine:
        variables = {text: os.environ[text] for text in os.environ if text.startswith(_OWN)}
        machine.server.variables.update({**variables, "TPUKIT_EMULATED_DEVICES": "8"})
        before = machine.listing()
        workers = [machine.remote]

        def fails(recipe, cause: str, fix: str, requirements: bytes = b"") -> None:
            on_top = Requirements({ROOT: requirements}) if requirements else None
            with pytest.raises(ProvisionFailed) as caught:
                require_provisioned(
                    provision_all(
                        workers, Wanted((), (recipe,)), requirements=on_top, deadline=within()
                    )
                )
            assert cause in caught.value.why.splitlines()[0], cause
            assert fix in str(caught.value.fix), cause

        for begin, cause, fix, end in cases:
            machine.sh(begin)
            fails(_HEEDLESS, cause, fix)
            if begin.startswith("cat"):
                step = wanted("dotfiles=file:///nowhere")
                with pytest.raises(ProvisionFailed, match="0 MB of disk free, but 200 MB may be"):
                    provision_all(workers, step, deadline=within())
                require_undone(undo_all(workers, (), deadline=within()))
            machine.sh(end)
        assert machine.listing() == before
        fails(SMALL, "no such package, or no such version", "--index", b"no-such-package-of-ours\n")
        require_undone(undo_all(workers, (), deadline=within()))
        assert machine.listing() == before


class OwnRoots(OpenSshHost):
    """Workers of which each has a root that goes with the test."""

    def before_server(self, index: int) -> tuple[str, ...]:
        return OWN_ROOT


def left(home: Path) -> list[str]:
    """Return what is in a home of tpukit's, except the agent and the records of `run`."""
    paths = sorted(str(path.relative_to(home)) for path in home.rglob(".tpukit/**/*"))
    return [path for path in paths if not re.match(r"\.tpukit/(agent|jobs$|jobs/run\.)", path)]


def test_a_client_that_ends_early_loses_nothing_and_undo_takes_it_all(account: Account) -> None:
    """Ctrl-C, then the same at once: it joins. An undo that is killed: the next one goes on."""
    if not account.made:
        pytest.skip("no ordinary user can be made here: system steps are NOT checked")
    with openssh_workers("v3-8", OwnRoots) as pod:
        home, tpukit = pod.host.home(0), pod.tpukit

        def jobs() -> int:
            return len([*home.glob(".tpukit/jobs/provision-apt-*/command")])

        with running(tpukit, "provision", "pod", "apt:htop") as client:
            eventually(jobs)
            client.send_signal(signal.SIGINT)
            told = client.communicate(timeout=60)[1]
        assert client.returncode == 130
        assert "continues there: the same command joins it" in told
        again = tpukit.document("provision", "pod", "apt:htop")["provision"]
        assert (again["ok"], again["changes"], jobs()) == (True, 1, 1)

        with running(tpukit, "provision", "undo", "pod", "--yes") as client:
            eventually(lambda: jobs() == 2)
            client.kill()
        tpukit.succeeds("provision", "undo", "pod", "--yes", timeout=300)
        assert left(home) == []
        (plan,) = tpukit.document("provision", "plan", "pod", "apt:htop")["plan"]["workers"]
        assert [step["outcome"] for step in plan["steps"]] == ["needed"]

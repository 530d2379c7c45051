"""System steps for real: an ordinary user with sudo, real apt, a root that goes with the test."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.login_account import Account
from support.own_root_machine import Machine, own_root_machine, wanted, within

from provision.test_step_programs import repository
from tpukit.errors import ProvisionFailed
from tpukit.provision.provisioning import plan_all, status_all
from tpukit.ssh.client import Connector
from tpukit.ssh.keys import KeyPair


@pytest.fixture
def machine(account: Account, key: KeyPair, connector: Connector) -> Iterator[Machine]:
    with own_root_machine(account, key, connector) as found:
        yield found


@pytest.mark.full_size
def test_a_package_comes_by_an_ordinary_user_and_goes_without_a_trace(machine: Machine) -> None:
    before = machine.listing()
    (plan,) = plan_all([machine.remote], wanted("apt:htop"), deadline=within())
    assert [(step.outcome, step.detail) for step in plan.steps] == [("needed", "install htop")]
    # The agent is all that a plan brings.
    assert all("/.tpukit" in line for line in machine.listing() ^ before)

    first = machine.apply("apt:htop")
    assert (first.error, first.changes) == ("", 1)
    assert machine.sh("command -v htop") == "/usr/bin/htop\n"
    again = machine.apply("apt:htop")
    assert (again.error, again.changes) == ("", 0)
    (status,) = status_all([machine.remote], deadline=within())
    (ledger,) = status.ledgers
    assert (ledger.step, ledger.by[:6], status.needed["apt:htop"]) == ("apt:htop", "tpukit", [])
    assert "htop" in ledger.undo[-1]
    assert machine.undo() == ("apt:htop",)
    assert machine.listing() == before
    assert machine.undo() == ()


@pytest.mark.full_size
def test_every_step_of_an_ordinary_user_s_goes_without_a_trace(machine: Machine) -> None:
    """Files of the user's that are changed: one without a last line's end, one that is missing."""
    home = machine.server.home
    settings = home.parent / "settings"
    machine.server.own(repository(settings, ".vimrc", ".gitconfig"))
    framework = home.parent / "omz"
    machine.server.own(repository(framework, "oh-my-zsh.sh"))
    (home / ".zshrc").write_text("echo mine")
    (home / ".vimrc").write_text("set mine")
    machine.server.own(home / ".zshrc")
    machine.server.own(home / ".vimrc")
    machine.sh(
        "sudo git config --system url.file://"
        f"{framework}.insteadOf https://github.com/ohmyzsh/ohmyzsh.git"
    )
    before = machine.listing()
    words = ("limits", "tcmalloc", "shell", f"dotfiles=file://{settings}")
    done = machine.apply(*words)
    assert (done.error, done.changes) == ("", 4)
    assert machine.apply(*words).changes == 0
    assert machine.sh("cat .vimrc; head -n 1 .zshrc") == "# from .vimrc\necho mine\n"
    assert machine.sh("getent passwd $(id -un)").endswith(":/usr/bin/zsh\n")
    assert "always" in machine.sh("cat /sys/kernel/mm/transparent_hugepage/enabled")
    assert len(machine.undo()) == 4
    assert machine.listing() - before == before - machine.listing() == set()


@pytest.fixture
def disk(machine: Machine, tmp_path: Path) -> Iterator[str]:
    """A data disk of 64 MiB, as the guest environment names them; yields its device."""
    image = tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(64 << 20)
    made = subprocess.run(["losetup", "--find", "--show", image], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no loop device: data disks are NOT checked: {made.stderr}")
    device = made.stdout.strip()
    number = Path(device).name.removeprefix("loop")
    machine.sh(
        f"sudo mknod -m 660 {device} b 7 {number}; "
        f"sudo ln -s {device} /dev/disk/by-id/google-persistent-disk-1"
    )
    yield device
    subprocess.run(["losetup", "--detach", device], check=True)


@pytest.mark.full_size
def test_a_disk_is_formatted_once_keeps_what_is_on_it_and_takes_the_caches(
    machine: Machine, disk: str
) -> None:
    machine.sh("mkdir -p .cache/uv && echo wheel >.cache/uv/wheel && sudo cp /dev/null /etc/fstab")
    machine.sh("ln -s /nowhere .cache/huggingface")
    before = machine.listing()
    done = machine.apply("disk")
    assert (done.error, done.changes, done.log_tail) == ("", 1, ())
    assert "format" in done.steps[0].detail
    machine.sh("echo kept >/mnt/data/mine")
    assert (
        machine.sh("readlink .cache/pip; cat .cache/uv/wheel; cat /etc/fstab").splitlines()[1]
        == "wheel"
    )
    assert "UUID=" in machine.sh("cat /etc/fstab")
    assert machine.apply("disk").changes == 0
    assert machine.undo("disk") == ("disk",)
    assert machine.listing() == before
    again = machine.apply("disk:/mnt/data")
    assert (again.error, again.changes) == ("", 1)
    assert "format" not in again.steps[0].detail
    assert machine.sh("cat /mnt/data/mine") == "kept\n"
    machine.sh("sleep 100 </mnt/data/mine >/dev/null 2>&1 &")
    with pytest.raises(ProvisionFailed, match="undo failed") as caught:
        machine.undo()
    assert "/mnt/data is in use" in caught.value.why
    machine.sh("sudo fuser -k -m /mnt/data || pkill -u $(id -u) sleep")
    assert machine.undo() == ("disk:/mnt/data",)
    assert machine.listing() == before

    subprocess.run(["blockdev", "--setro", disk], check=True)
    done = machine.apply("disk")
    assert done.error == ""
    assert " ro," in machine.sh("grep /mnt/data /proc/mounts")
    machine.undo()
    subprocess.run(["blockdev", "--setrw", disk], check=True)

    subprocess.run(["wipefs", "-q", "-a", disk], check=True)
    content = Path(disk).read_bytes()
    with pytest.raises(ProvisionFailed, match="has data that is no file system") as caught:
        machine.apply("disk")
    assert caught.value.why == "nothing was changed"
    assert Path(disk).read_bytes() == content
    assert machine.undo() == ()
    assert machine.listing() == before


@pytest.mark.full_size
def test_what_stands_in_the_way_is_said_before_anything_is_changed(
    machine: Machine, account: Account
) -> None:
    before = machine.listing()
    cases = {
        "disk": "this worker has no data disk",
        "apt:no-such-package": "apt cannot install no-such-package: E: Unable to locate package",
        "dotfiles=https://127.0.0.1:9/x": "cannot be cloned",
    }
    for word, cause in cases.items():
        if word == "disk":
            with pytest.raises(ProvisionFailed, match=cause) as caught:
                machine.apply("limits", word)
            assert caught.value.why == "nothing was changed"
        else:
            assert cause in machine.apply(word).error, word
        machine.undo()
        assert machine.listing() == before, word
    with account.sudoing(""), pytest.raises(ProvisionFailed) as caught:
        machine.apply("limits")
    assert "may not use sudo without a password" in caught.value.what
    assert "step limits, worker 0" in caught.value.reason

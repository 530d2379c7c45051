"""What a TPU VM's system decides is tested on one: systemd, sudo, apt, reboots and full disks."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.command_line import Tpukit
from support.machines import STATE, Machine, machines_home, needs_machines
from support.openssh_workers import running
from support.processes import eventually

# The first test builds the root file system, which other long tests slow down.
pytestmark = [pytest.mark.journey, pytest.mark.full_size, pytest.mark.timeout(1800)]


@pytest.fixture(scope="session")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the root file system, which all processes of a run share."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "machines"


@pytest.fixture(scope="module")
def machine(roots: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A slice that `up` has made, provisioned and tested, with a guard and a start-up script."""
    tpukit = machines_home(tmp_path_factory.mktemp("machines"), roots)
    tpukit.succeeds("emulator", "start", "--engine", "machines", "--create-seconds", "0.2")
    script = "startup-script=id -un; systemctl --version | head -n 1"
    words = ("--with", "jax", "--ttl", "8h", "--metadata", script)
    done = tpukit.succeeds("--local", "up", "v3-8", "one", *words, "--json", timeout=900)
    (worker,) = json.loads(done.stdout)["smoke"]["workers"]
    assert worker["devices"] == 8
    yield Machine(tpukit, "one")
    tpukit.succeeds("emulator", "stop")
    assert not traces(tpukit)


def traces(tpukit: Tpukit) -> list[object]:
    """Return processes, control groups and mounts of this home's machines."""
    identity = (tpukit.home / STATE / "identity").read_text()[:16]
    groups = [*Path("/sys/fs/cgroup").glob(f"**/tpukit-{identity}*")]
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    mounted = [line for line in mounts if str(tpukit.home) in line]
    return [*tpukit.processes(), *groups, *mounted]


@needs_machines
def test_a_worker_is_a_system_of_its_own_with_google_s_services(machine: Machine) -> None:
    eventually(lambda: machine("systemctl is-system-running || true") == "running")
    seen = machine("cat /proc/1/comm; sudo id -un; grep -o 'session-.*scope' /proc/self/cgroup")
    assert seen.split()[:2] == ["systemd", "root"]
    assert seen.split()[2].startswith("session-")
    journal = machine("sudo journalctl --output cat --unit google-startup-scripts")
    assert "startup-script: root\nstartup-script: systemd " in journal
    assert "startup-script exit status 0" in journal


@needs_machines
def test_a_run_ends_with_all_that_escaped_from_its_session(machine: Machine) -> None:
    script = "sudo setsid -f sleep 7001; env -i setsid -f sleep 7002; sleep 7003"
    words = ("--run-id", "escapes", "--detach", "--", script)
    machine.tpukit.succeeds("--local", "run", machine.name, *words)
    eventually(lambda: machine("pgrep -fc 'sleep 700[123]$' || true") >= "3")
    machine.tpukit.succeeds("--local", "kill", machine.name, "escapes")
    assert machine("pgrep -fa '^sleep 700[123]$' || true") == ""


@needs_machines
def test_ctrl_c_ends_all_that_escaped_from_an_attached_run(machine: Machine) -> None:
    leaves = 'sudo su -l "$(id -un)" -c "setsid -f sleep 7010"'  # for another control group
    script = f"sudo setsid -f sleep 7005; env -i setsid -f sleep 7006; {leaves}; sleep 7007"
    with running(machine.tpukit, "--local", "run", machine.name, "--", script) as process:
        eventually(lambda: machine("pgrep -fc '^sleep 70(0[567]|10)$' || true") >= "4")
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert "why: the command and its control group were ended on every worker" in told
    assert machine("pkill -fe '^sleep 7010$'")
    assert machine("pgrep -fa '^sleep 700[567]$' || true") == ""


@needs_machines
def test_a_run_whose_client_was_killed_is_listed_and_ended(machine: Machine) -> None:
    script = "sudo setsid -f sleep 7008; exec sleep 7009"
    with running(machine.tpukit, "--local", "run", machine.name, "--", script) as process:
        eventually(lambda: machine("pgrep -fc 'sleep 700[89]$' || true") >= "2")
        process.kill()

    def left() -> list[str]:
        jobs = json.loads(machine.tpukit.succeeds("--local", "jobs", machine.name, "--json").stdout)
        return [job["run"] for job in jobs["jobs"] if job["state"] == "attached, client gone"]

    eventually(lambda: len(left()) == 1)
    machine.tpukit.succeeds("--local", "kill", machine.name, *left())
    assert machine("pgrep -fa '^sleep 700[89]$' || true") == ""


@needs_machines
def test_a_run_that_a_reboot_ends_is_lost_whatever_its_program_says(machine: Machine) -> None:
    """A program that saves at TERM ends with 0: that is no end of its own."""
    script = "trap 'echo saved; exit 0' TERM; echo begun; while :; do sleep 0.1; done"
    run = f"rebooted-{time.monotonic_ns()}"  # a second attempt has the same machine
    words = ("--run-id", run, "--detach", "--", script)
    machine.tpukit.succeeds("--local", "run", machine.name, *words)
    log = ("--local", "logs", machine.name, run)
    eventually(lambda: "begun" in machine.tpukit(*log).stdout)
    machine.reboot()
    shown = machine.tpukit.succeeds("--local", "jobs", machine.name, run).stdout
    assert "lost" in shown, shown
    assert "saved" in machine.tpukit(*log).stdout


@needs_machines
def test_a_package_waits_for_unattended_upgrades(machine: Machine) -> None:
    machine.packages("slow|1")
    machine("sudo apt-get install --yes -q slow >/dev/null")
    hold = "while ! [ -e /run/go-on ]; do sleep 0.1; done"
    machine.packages(f"slow|2||{hold}", "quick|1")
    machine(
        """
        echo 'Unattended-Upgrade::Origins-Pattern { "origin=*"; };' |
            sudo tee /etc/apt/apt.conf.d/60tests >/dev/null
        sudo systemd-run --quiet --unit=tests-upgrade unattended-upgrade
        lock=$(stat -c %i /var/lib/dpkg/lock-frontend)
        until pgrep -f slow.postinst >/dev/null && grep -q ":$lock " /proc/locks; do sleep 0.1; done
        """
    )
    words = ("--local", "provision", "apply", machine.name, "apt:quick")
    with machine.tpukit.start(*words) as applying:
        log = ".tpukit/jobs/provision-apt*/log"
        eventually(lambda: "waiting" in machine(f"cat {log} 2>/dev/null || true"))
        assert "unattended-upgrade" in machine(f"cat {log}")
        machine("sudo touch /run/go-on")
        applying.communicate(timeout=120)
    assert applying.returncode == 0
    assert machine("dpkg-query -W -f '${Status}' quick") == "install ok installed"


@needs_machines
def test_an_upgrade_is_refused_with_the_package_that_needs_it_and_the_way_through(
    machine: Machine,
) -> None:
    machine.packages("library|1", "other|1")
    machine("sudo apt-get install --yes -q library >/dev/null")
    machine.packages("library|2", "program|1|library (= 2)", "other|1")
    refused = machine.apply("apt:program", status=10)
    assert "to install program apt would upgrade library from 1 to 2" in refused.stderr
    command = "sudo apt-get install --yes program"
    assert command in refused.stderr
    machine(f"{command} >/dev/null")
    machine.apply("apt:program")


@needs_machines
def test_the_limits_step_only_widens_the_modes_of_chips(machine: Machine) -> None:
    modes = "stat -c '%a %U:%G' /dev/vfio/0 /dev/vfio/1; ls /etc/udev/rules.d 2>/dev/null || true"
    machine("sudo mkdir -p /dev/vfio; for n in 0 1; do sudo mknod -m 666 /dev/vfio/$n c 1 3; done")
    machine.apply("limits")
    assert machine(modes) == "666 root:root\n666 root:root"
    machine("sudo chmod 660 /dev/vfio/1; sudo chgrp daemon /dev/vfio/1")
    machine.apply("limits")
    assert machine(modes) == "666 root:root\n666 root:daemon\n90-tpukit.rules"
    undo = ("provision", "undo", machine.name, "limits")
    machine.tpukit.succeeds("--local", *undo)
    assert machine(modes) == "666 root:root\n660 root:daemon"
    machine("sudo rm -r /dev/vfio")


@needs_machines
def test_a_disk_that_the_kernel_s_log_fills_is_named_with_what_helps(machine: Machine) -> None:
    machine("sudo truncate --size 16G /var/log/kern.log")
    machine("sudo mount -t tmpfs -o size=20m,mode=777 tmpfs ~")
    refused = machine.apply("flax", status=10)
    assert "MB are free" in refused.stderr
    assert "sudo systemctl restart healthagent.service" in refused.stderr
    machine("cd / && sudo umount ~tpukit; sudo rm /var/log/kern.log")


@needs_machines
def test_a_python_without_its_standard_library_is_named(machine: Machine) -> None:
    library = machine("python3 -c 'import json; print(json.__path__[0])'")
    machine(f"sudo mv {library} /opt/json")
    refused = machine.apply("flax", status=10)
    machine(f"sudo mv /opt/json {library}")
    assert "python3 on this worker lacks its standard library" in refused.stderr
    assert "sudo apt-get install --yes python3" in refused.stderr


@needs_machines
def test_a_slice_that_was_stopped_comes_back_with_its_disk(machine: Machine) -> None:
    tpukit, name = machine.tpukit, machine.name
    machine("echo mine >~/note")
    tpukit.succeeds("--local", "stop", name)
    assert not systems(tpukit)
    tpukit.succeeds("--local", "start", name)
    assert machine("cat ~/note") == "mine"


@needs_machines
def test_nothing_runs_on_a_preempted_slice_and_nothing_is_left_of_a_deleted_one(
    machine: Machine,
) -> None:
    tpukit, other = machine.tpukit, Machine(machine.tpukit, "two")
    tpukit.succeeds("--local", "create", "v3-8", "two", "--spot")
    host = other("hostname")
    assert len(systems(tpukit)) == 2
    tpukit.succeeds("emulator", "preempt", "two")
    assert len(systems(tpukit)) == 1
    folder = tpukit.home / STATE / "workers" / host
    assert folder.exists()
    tpukit.succeeds("--local", "delete", "two", "--yes")
    assert not folder.exists()
    assert not [place for place in traces(tpukit) if host in str(place)]


def systems(tpukit: Tpukit) -> list[psutil.Process]:
    """Return the running machines of this home."""
    return [process for process in tpukit.processes() if process.name() == "systemd-nspawn"]


@needs_machines
def test_what_a_killed_emulator_has_left_goes_at_the_next_start(machine: Machine) -> None:
    tpukit = machine.tpukit
    machine("echo mine >~/note")
    running = json.loads((tpukit.home / STATE / "emulator.json").read_text())
    for pid in (running["guardian"], running["pid"]):
        os.kill(pid, signal.SIGKILL)
    tpukit.succeeds("emulator", "start", "--engine", "machines", "--create-seconds", "0.2")
    tpukit.succeeds("--local", "wait", machine.name, "--for", "ssh")
    assert machine("cat ~/note") == "mine"
    assert len(systems(tpukit)) == 1


@needs_machines
def test_the_guard_comes_back_with_its_system_and_ends_the_slice(machine: Machine) -> None:
    """The last test: nothing is left of the slice."""
    tpukit, name = machine.tpukit, machine.name
    tpukit.succeeds("--local", "up", "v3-8", name, "--with", "jax", timeout=600)
    assert machine("systemctl is-active tpukit-guard") == "active"
    tpukit.succeeds("--local", "extend", name, "--ttl", "1s")
    tpukit("--local", "ssh", name, "--", "sudo systemctl reboot")
    tpukit.succeeds("--local", "wait", name, "--for", "gone")
    assert not systems(tpukit)
    assert not [*(tpukit.home / STATE / "workers").glob("t1v-*")]

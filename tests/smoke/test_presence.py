"""Level 0: chips that are not there, have no driver or are held are named; none is opened."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.agent_program import answers, ask_agent
from support.local_worker import LocalWorker, seconds

from tpukit.accelerators import AcceleratorType
from tpukit.errors import TransportFailed
from tpukit.jobs.end import Holder
from tpukit.smoke.presence import PciFunction, Presence, judge_presence, look_for_chips
from tpukit.smoke.smoke_report import SmokeReport
from tpukit.ssh.fan_out import Outcome
from tpukit.ssh.worker import RemoteWorker

CHIP = PciFunction(device="0x0027", subsystem="0x004f", driver="google_tpu")
#: Google's network card, and a chip of v2.
OTHERS = (
    PciFunction(device="0x0042", subsystem="0x0058", driver="gvnic"),
    PciFunction(device="0x0027", subsystem="0x004e", driver="google_tpu"),
)
V3_8 = AcceleratorType.parse("v3-8")
SEEN = Presence(
    functions=(*OTHERS, CHIP, CHIP, CHIP, CHIP),
    files=4,
    control_agent=False,
    lock=False,
    free_bytes=50,
    disk_bytes=100,
    kernel_log_bytes=0,
    libtpu=("jax",),
    emulated=0,
)


def judged(
    holders: tuple[Holder, ...] = (), accelerator: AcceleratorType = V3_8, **changes: Any
) -> SmokeReport:
    seen = SEEN.model_copy(update=changes)
    return judge_presence([Outcome(RemoteWorker(0, lambda: None), (seen, holders))], accelerator)


def test_four_chips_with_a_driver_that_nobody_holds_are_eight_devices() -> None:
    report = judged()
    (worker,) = report.workers
    assert (worker.error, worker.devices, worker.platform) == ("", 8, "google_tpu")
    assert (report.ok, report.level, report.notes, report.stand_in) == (True, 0, (), "")


def test_the_network_card_is_no_chip() -> None:
    """Chips since v4 are known by their device alone, whatever their subsystem."""
    chip = PciFunction(device="0x0063", subsystem="0x00ff", driver="vfio-pci")
    v5e = AcceleratorType.parse("v5litepod-8")
    assert judged(accelerator=v5e, functions=(*OTHERS, *[chip] * 8)).ok
    few = judged(accelerator=v5e, functions=(*OTHERS, *[chip] * 7))
    assert few.workers[0].error == "7 of 8 chips on the PCI bus"


def test_what_is_wrong_with_chips_is_named() -> None:
    unbound = CHIP.model_copy(update={"driver": ""})
    cases: list[tuple[SmokeReport, str]] = [
        (judged(functions=(CHIP,) * 3), "3 of 4 chips on the PCI bus"),
        (judged(functions=OTHERS), "0 of 4 chips on the PCI bus"),
        (judged(functions=(CHIP, CHIP, CHIP, unbound)), "1 of 4 chips without a driver"),
        (judged(files=0), "no file of a chip in /dev"),
        (judged((Holder(7, "", "python train.py"),)), "busy with PID 7"),
        (judged(emulated=7), "7 of 8 devices"),
    ]
    for report, said in cases:
        assert not report.ok, said
        assert said in report.workers[0].error


def test_a_v6e_needs_google_s_agent_and_no_other_generation_is_known_to() -> None:
    """Without it libtpu found no hardware on a v6e. A v4's tpu-env names no image of it."""
    v6e = AcceleratorType.parse("v6e-4")
    chips = (PciFunction(device="0x006f", subsystem="0x00ff", driver="vfio-pci"),) * 4
    assert judged(accelerator=v6e, functions=chips, control_agent=True).ok
    (worker,) = judged(accelerator=v6e, functions=chips).workers
    assert worker.error.startswith("no process of vbarcontrolagent, and nothing listens on its")
    assert worker.error.endswith("runtime version v2-alpha-tpuv6e has it")
    assert judged().ok


def sees_agent(home: Path) -> bool:
    (answer,) = answers(ask_agent(home, "look_for_chips", {}))
    return answer.flag("control_agent")


@pytest.mark.skipif(
    sys.platform != "linux", reason="no /proc: the look for the agent is NOT checked"
)
def test_the_agent_is_seen_by_its_process_and_by_its_port(tmp_path: Path) -> None:
    assert not sees_agent(tmp_path)
    named = ["bash", "-c", "exec -a /usr/bin/vbar_control_agent sleep 60"]
    with subprocess.Popen(named) as agent:
        seen = [
            sees_agent(tmp_path) for _ in range(3)
        ]  # bash may not have become it at the first look
        agent.kill()
    assert seen[-1]
    with socket.create_server(("127.0.0.1", 8353)):
        assert sees_agent(tmp_path)
    assert not sees_agent(tmp_path)


def test_what_may_matter_is_noted_and_is_no_failure() -> None:
    for changes, said in (
        ({"lock": True}, "libtpu's lock is left"),
        ({"free_bytes": 4}, "only 4% of the disk is free"),
        (
            {"free_bytes": 4, "kernel_log_bytes": 16 << 30},
            "sudo systemctl restart healthagent.service",
        ),
        ({"libtpu": ()}, "no environment has libtpu yet"),
    ):
        report = judged(**changes)
        assert report.ok
        assert said in report.notes[0]


def test_google_s_own_runtime_is_named_with_what_stops_it() -> None:
    report = judged((Holder(5380, "", "/grpc_tpu_worker/main", "tpu-runtime"),))
    assert "busy with PID 5380 (Google's tpu-runtime, " in report.workers[0].error
    assert "-- sudo systemctl stop tpu-runtime" in report.notes[0]


def test_a_real_worker_is_looked_at_and_one_that_is_lost_is_named(tmp_path) -> None:
    def refuse():
        raise TransportFailed("no answer from demo worker 1")

    stand_in = LocalWorker(tmp_path, environment={"TPUKIT_EMULATED_DEVICES": "8"}).remote()
    workers = [stand_in, RemoteWorker(1, refuse), LocalWorker(tmp_path, index=2).remote()]
    report = look_for_chips(workers, V3_8, deadline=seconds(60))
    assert [worker.error for worker in report.workers] == [
        "",
        "no answer from demo worker 1",
        "0 of 4 chips on the PCI bus",
    ]
    assert report.stand_in.startswith("8 CPU devices in a TPU's place")

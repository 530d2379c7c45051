"""Copies, pushes, and the system's own tools, on an emulated slice of four workers."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import Tpukit

pytestmark = pytest.mark.journey


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tpukit]:
    """The program with a slice of four workers named pod."""
    tpukit = Tpukit(tmp_path_factory.mktemp("transfer"))
    tpukit.succeeds("--local", "emulator", "start")
    tpukit.succeeds("emulator", "add", "network", "closed")
    tpukit.succeeds("--local", "create", "v4-32", "pod", "--network", "closed")
    tpukit.succeeds("--local", "firewall", "apply", "pod")
    yield tpukit
    tpukit("emulator", "stop")


def test_a_folder_goes_up_to_all_and_comes_down_from_each(four: Tpukit) -> None:
    data = four.home / "data"
    (data / "sub").mkdir(parents=True)
    (data / "sub" / "x").write_bytes(os.urandom(2_000_000))
    four.succeeds("--local", "cp", "data", "pod:")
    four.succeeds("--local", "run", "pod", "--", "hostname > data/name")
    done = four.succeeds("--local", "cp", "pod:data", "back", "--worker", "all")
    assert len(done.stdout.splitlines()) == 4
    names = {(four.home / "back" / f"worker-{n}" / "data" / "name").read_text() for n in range(4)}
    assert len(names) == 4
    for n in range(4):
        copy = four.home / "back" / f"worker-{n}" / "data" / "sub" / "x"
        assert copy.read_bytes() == (data / "sub" / "x").read_bytes()


@pytest.mark.full_size
def test_a_copy_that_was_killed_goes_on_when_it_is_typed_again(four: Tpukit) -> None:
    (four.home / "large").write_bytes(os.urandom(150_000_000))
    part = "cat ~/.tpukit-upload-*.part 2>/dev/null | wc -c"
    with four.start("--local", "cp", "large", "pod:", "--worker", "0") as process:
        while process.poll() is None:
            arrived = int(four.succeeds("--local", "ssh", "pod", "--", part).stdout)
            if arrived > 1_000_000:
                process.send_signal(signal.SIGKILL)
                break
    arrived = int(four.succeeds("--local", "ssh", "pod", "--", part).stdout)
    done = four.succeeds("--local", "cp", "large", "pod:", "--worker", "0", "--json")
    copied = four.succeeds("--local", "ssh", "pod", "--", "sha256sum < large").stdout
    local = subprocess.run(
        ["sha256sum"], stdin=(four.home / "large").open("rb"), capture_output=True, text=True,
        check=True,
    ).stdout  # fmt: skip
    assert copied == local
    if arrived:  # it was killed in the middle
        moved = float(done.stderr.split("sent ")[-1].split()[0])
        assert moved < 150


def test_what_is_there_already_is_not_sent(four: Tpukit) -> None:
    (four.home / "same").write_bytes(os.urandom(100_000))
    four.succeeds("--local", "cp", "same", "pod:")
    copied = four.document("--local", "cp", "same", "pod:")["copied"]
    assert [each["result"] for each in copied] == ["unchanged"] * 4


def test_a_missing_source_is_not_found_on_the_worker_and_bad_input_here(four: Tpukit) -> None:
    four.ends_with(3, "--local", "cp", "pod:absent", ".")
    four.ends_with(2, "--local", "cp", "absent", "pod:")


def test_a_push_makes_every_worker_the_same_and_the_second_changes_nothing(four: Tpukit) -> None:
    tree = four.home / "tree"
    tree.mkdir()
    (tree / "train.py").write_text("print('pushed')\n")
    assert "4 of 4 workers changed" in four.succeeds("--local", "push", "pod", "tree").stderr
    assert "0 of 4 workers changed" in four.succeeds("--local", "push", "pod", "tree").stderr
    done = four.succeeds("--local", "run", "pod", "--", "python3 tree/train.py")
    assert sorted(done.stdout.splitlines()) == [f"[{n}] pushed" for n in range(4)]


def test_the_systems_tools_work_with_the_generated_configuration(four: Tpukit) -> None:
    request = four.document("--local", "ssh-config", "pod")["ssh_config"]
    config = request["path"]
    assert request["hosts"][0]["names"] == ["tpu.pod", "tpu.pod.0"]

    def system(*words: str) -> str:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=300, cwd=four.home
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    hosts = {system("ssh", "-F", config, f"tpu.pod.{n}", "hostname") for n in range(4)}
    assert len(hosts) == 4
    assert system("ssh", "-F", config, "tpu.pod", "hostname") in hosts
    (four.home / "note").write_text("by scp\n")
    system("scp", "-q", "-F", config, "note", "tpu.pod.2:copied")
    assert system("ssh", "-F", config, "tpu.pod.2", "cat copied") == "by scp\n"
    rsync = shutil.which("rsync")  # on the workers it is this machine's too
    if rsync is None:
        pytest.skip("rsync is not installed: rsync with our configuration is NOT checked here")
    shell = ("-e", f"ssh -F {config}", f"--rsync-path={rsync}")
    system("rsync", "-a", *shell, "note", "tpu.pod.3:by-rsync")
    assert system("ssh", "-F", config, "tpu.pod.3", "cat by-rsync") == "by scp\n"


def test_a_worker_behind_another_is_reached(four: Tpukit) -> None:
    behind = ("--local", "ssh", "pod", "--worker", "2", "--jump", "pod:1")
    refused = four.ends_with(255, *behind, "--timeout", "10s", "--", "hostname").stderr
    assert "tpukit --local firewall apply pod --jump pod:1 --zone" in refused
    four.succeeds("--local", "firewall", "apply", "pod", "--jump", "pod:1")
    done = four.succeeds(*behind, "--", "hostname")
    assert done.stdout.strip().endswith("-w-2")


def test_a_port_of_a_worker_is_reached_until_it_is_interrupted(
    four: Tpukit, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as service:
        port = service.getsockname()[1]
        with four.start("--local", "forward", "pod", f"0:{port}") as process:
            assert process.stdout
            here = int(process.stdout.readline().split()[0].rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", here), timeout=60) as client:
                accepted, _ = service.accept()
                accepted.sendall(b"through")
                assert client.recv(7) == b"through"
                accepted.close()
            process.send_signal(signal.SIGINT)
        assert process.returncode == 130


def test_hosts_are_gone_with_the_slice(four: Tpukit) -> None:
    """Last in this file: it deletes the slice."""
    path = Path(four.document("--local", "ssh-config", "pod")["ssh_config"]["path"])
    assert "Host tpu.pod " in path.read_text()
    four.succeeds("--local", "delete", "pod", "--yes")
    assert "pod" not in path.read_text()

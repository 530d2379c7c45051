"""Workers with a network, a root and processes of their own; needs root on Linux."""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from .crew import NODE, USER, Crew, alive, eventually, hired, namespaces, needs_root

JAX = """
import jax, jax.numpy as jnp, numpy as np
jax.distributed.initialize()
from jax.sharding import Mesh, NamedSharding, PartitionSpec
n = jax.device_count()
mesh = Mesh(np.array(jax.devices()), ("all",))
split, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("all",), ()))
numbers = np.arange(n, dtype=np.float32)
spread = jax.make_array_from_callback((n,), split, lambda index: numbers[index])
total = jax.jit(jnp.sum, out_shardings=whole)(spread)
print("seen", jax.process_index(), jax.process_count(), n, float(total))
"""


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    with hired(tmp_path, namespaces) as crew:
        yield crew


@pytest.fixture
def pair(crew: Crew) -> Crew:
    crew.allocate(2)
    crew.boot("v4-16")
    return crew


def traces() -> set[str]:
    """Return the mounts and the interfaces of this machine."""
    names = [name for _, name in socket.if_nameindex()]
    return {*names, *Path("/proc/self/mounts").read_text().splitlines()}


def first_processes(crew: Crew) -> list[int]:
    """Return the processes of this machine that run in a worker's folder of this crew."""
    place = str(crew.directory / "workers")
    found = psutil.process_iter(["cmdline"])
    return [each.pid for each in found if place in " ".join(each.info["cmdline"] or [])]


@needs_root
def test_each_worker_has_its_own_address_name_and_processes(pair):
    seen = "hostname; cat /etc/hostname; ip -o -4 address show eth0; ls -d /proc/[0-9]* | wc -l"
    for index in (0, 1):
        record = pair.workers[index]
        name, file, address, count = pair.say(seen, index=index).splitlines()
        assert (name, file) == (record.hostname, record.hostname)
        assert f"inet {record.address}/" in address
        assert int(count) < 10


@needs_root
def test_each_worker_has_its_own_metadata_server_at_the_address_of_gces(pair):
    ask = "curl -sf -H 'Metadata-Flavor: Google' http://metadata.google.internal"
    ask += "/computeMetadata/v1/instance/attributes/agent-worker-number"
    assert [pair.say(ask, index=index) for index in (0, 1)] == ["0", "1"]


@needs_root
def test_what_a_worker_writes_is_neither_on_its_neighbour_nor_on_the_machine(pair):
    files = "/usr/local/bin/own-program /etc/own-file /own-folder /tmp/own-note"
    pair.say(f"sudo touch {files}")
    look = f"ls {files} 2>/dev/null | wc -l"
    assert [pair.say(look, index=index) for index in (0, 1)] == ["4", "0"]
    assert not Path("/usr/local/bin/own-program").exists()


@needs_root
def test_neighbours_reach_each_others_ports_and_nothing_else(pair):
    server = "import socket; s = socket.create_server(('', 8482)); print('up', flush=True); "
    server += "c = s.accept()[0]; c.sendall(b'hello'); c.close()"
    words = pair.words(f'python3 -c "{server}"', index=0)
    first = pair.workers[0].address
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"up\n"
        assert pair.say(f"cat < /dev/tcp/{first}/8482", index=1) == "hello"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((first, 8482), timeout=60)
    outside = pair.ssh("exec 3<>/dev/tcp/192.0.2.1/80", index=1)
    assert b"unreachable" in outside.stderr


@needs_root
def test_a_worker_sees_nothing_of_the_account_that_runs_the_emulator(crew, tmp_path):
    (tmp_path / "token").write_text("secret")
    crew.allocate()
    crew.boot()
    assert crew.ssh(f"cat {tmp_path}/token").returncode == 1
    assert crew.say("ls /home") == USER
    assert crew.ssh(f"ls {Path.home()}/.ssh").returncode == 2


@needs_root
def test_chips_are_device_files_unless_the_runtime_version_does_not_fit(crew):
    look = "ls /dev | grep -c accel; echo $TPUKIT_EMULATED_DEVICES"
    crew.allocate()
    crew.boot("v6e-8", runtime_version="v2-alpha-tpuv6e")
    assert crew.say(look).split() == ["8", "8"]
    crew.allocate(node=NODE + "2")
    crew.boot("v6e-8", NODE + "2", runtime_version="tpu-ubuntu2204-base")
    assert crew.say(look).split() == ["0", "0"]


@needs_root
def test_a_mode_that_a_worker_gives_a_device_file_is_not_given_to_the_machine_s(crew):
    before = Path("/dev/null").stat().st_mode
    crew.allocate()
    crew.boot()
    look = "sudo chmod 600 /dev/full /dev/accel0; echo x > /dev/null; stat -c '%a %F' /dev/full"
    assert crew.say(look) == "600 character special file"
    assert Path("/dev/null").stat().st_mode == before
    assert Path("/dev/full").stat().st_mode & 0o777 == 0o666


@needs_root
def test_http_leaves_a_worker_through_the_emulators_proxy(crew):
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    heard: list[bytes] = []

    def serve() -> None:
        for _ in range(2):
            connection, _ = listener.accept()
            with connection:
                heard.append(connection.recv(4096))
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

    threading.Thread(target=serve, daemon=True).start()
    crew.allocate()
    crew.boot()
    # By the machine's address: a worker keeps 127.0.0.1 for itself.
    ask = f"curl -sf --noproxy '' {{}} http://127.0.0.1:{port}/path?q=1"
    with listener:
        assert crew.say(ask.format("")) == "hi"
        assert crew.say(ask.format("--proxytunnel")) == "hi"
    assert [text.split(b"\r\n")[0] for text in heard] == [b"GET /path?q=1 HTTP/1.1"] * 2
    assert b"proxy" not in heard[0].lower()


@needs_root
def test_sftp_shows_the_worker_and_not_the_machine(pair):
    pair.say("sudo touch /etc/own-file")
    with pair.client() as client, client.open_sftp() as files:
        assert files.normalize(".") == f"/home/{USER}"
        assert files.normalize("../..") == "/"
        files.stat("/etc/own-file")
        with files.open("/../../tmp/note", "w") as file:
            file.write("hello")
    assert pair.say("cat /tmp/note") == "hello"


@needs_root
def test_sftp_follows_links_on_the_worker_and_never_out_of_it(pair, tmp_path):
    """`/tmp/…` below is a folder of the machine for this process, and of the worker for SFTP."""
    (tmp_path / "there").mkdir()
    pair.say(f"mkdir -p {tmp_path}/there && ln -s {tmp_path}/there up && ln -s loop loop")
    pair.say("ln -s /etc/hostname name && ln -s ../../../../etc/hostname other && ln -s loop/x in")
    with pair.client() as client, client.open_sftp() as files:
        for link in ("name", "other"):
            assert files.open(link).read().decode().strip() == pair.workers[0].hostname
        with files.open("up/note", "w") as file:
            file.write("hello")
        files.chmod("up", 0o711)
        assert files.normalize("up/note") == f"{tmp_path}/there/note"
        assert files.listdir("up") == ["note"]
        assert stat.S_ISLNK(files.lstat("up").st_mode)
        assert files.readlink("name") == "/etc/hostname"
        with pytest.raises(OSError, match="symbolic links"):
            files.stat("in")
        files.remove("up/note")
        files.remove("up")
    assert pair.say(f"stat -c %a {tmp_path}/there; ls {tmp_path}/there; ls up || true") == "711"
    assert list((tmp_path / "there").iterdir()) == []


@needs_root
def test_a_worker_that_nobody_talks_to_has_no_process(pair):
    assert first_processes(pair) == []
    pair.say("true", index=1)
    # Of the command nothing is left: unshare, and the first process beneath it.
    assert eventually(lambda: len(first_processes(pair)) == 2)


@needs_root
def test_halt_leaves_no_process_mount_or_interface(pair):
    before = traces()
    for index in (0, 1):
        pair.say("env -i setsid sleep 1000 </dev/null >/dev/null 2>&1 &", index=index)
    inside = [pid for pid in first_processes(pair) if alive(pid)]
    pair.host.halt(NODE)
    assert inside
    assert not any(alive(pid) for pid in inside)
    assert first_processes(pair) == []
    assert traces() <= before


@needs_root
def test_a_worker_that_killed_its_first_process_comes_back_with_its_files(crew):
    crew.allocate()
    crew.boot()
    crew.say("sudo touch /etc/kept")
    assert eventually(lambda: len(first_processes(crew)) == 2)
    (holder, _) = first_processes(crew)
    os.kill(holder, 9)
    assert eventually(lambda: not first_processes(crew))
    assert crew.say("ls /etc/kept; hostname").split() == ["/etc/kept", crew.workers[0].hostname]


@needs_root
@pytest.mark.journey
def test_apt_installs_in_one_worker_and_neither_in_another_nor_on_the_machine(pair):
    assert not shutil.which("tree"), "the machine has the package that this test installs"
    line = pair.words("sudo apt-get update -q && sudo apt-get install -qy tree && tree --version")
    done = subprocess.run(line, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    assert b"tree v" in done.stdout
    assert pair.ssh("which tree", index=1).returncode == 1
    assert not shutil.which("tree")


@needs_root
@pytest.mark.journey
def test_jax_on_four_workers_finds_the_slice_and_sums_over_all_of_it(crew):
    crew.allocate(4)
    crew.boot("v4-32")
    make = "python3 -m venv env && env/bin/pip install -q jax==0.10.2"
    everywhere(crew, make)
    told = everywhere(crew, f"env/bin/python -c '{JAX}'")
    seen = [re.search(r"^seen (.*)$", text, re.MULTILINE) for text in told]
    assert [found[1].split() for found in seen if found] == [
        [str(index), "4", "16", "120.0"] for index in range(4)
    ]


def everywhere(crew: Crew, line: str) -> list[str]:
    """Run a line on every worker at once and return what each one printed."""
    started = [
        subprocess.Popen(
            crew.words(line, index=index), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for index in range(len(crew.workers))
    ]
    printed = [process.communicate(timeout=600)[0].decode() for process in started]
    assert not any(process.returncode for process in started), "\n".join(printed)
    return printed

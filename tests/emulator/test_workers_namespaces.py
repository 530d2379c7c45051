"""Workers with a network, a root and processes of their own; needs root on Linux."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import socket
import stat
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest
from support.emulated_workers import (
    NODE,
    USER,
    EmulatedWorkers,
    emulated_workers,
    namespaces,
    needs_root,
)
from support.processes import alive, eventually

pytestmark = pytest.mark.process


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[EmulatedWorkers]:
    with emulated_workers(tmp_path, namespaces) as workers:
        yield workers


@pytest.fixture
def pair(workers: EmulatedWorkers) -> EmulatedWorkers:
    workers.allocate(2)
    workers.boot("v4-16")
    return workers


def traces(workers: EmulatedWorkers) -> set[str]:
    """Return the mounts and the interfaces of this machine, without other tests' mounts."""
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    names = [name for _, name in socket.if_nameindex()]
    others = f" {tempfile.gettempdir()}/"
    ours = (mount for mount in mounts if str(workers.directory) in mount or others not in mount)
    return {*names, *ours}


def first_processes(workers: EmulatedWorkers) -> list[int]:
    """Return the processes of this machine that run in a folder of these workers."""
    place = str(workers.directory / "workers")
    found = psutil.process_iter(["cmdline"])
    return [process.pid for process in found if place in " ".join(process.info["cmdline"] or [])]


@needs_root
def test_each_worker_has_its_own_address_name_and_processes(pair):
    seen = "hostname; cat /etc/hostname; ip -o -4 address show eth0; ls -d /proc/[0-9]* | wc -l"
    for index in (0, 1):
        record = pair.records[index]
        name, file, address, count = pair.output(seen, index=index).splitlines()
        assert (name, file) == (record.hostname, record.hostname)
        assert f"inet {record.address}/" in address
        assert int(count) < 10


@needs_root
def test_each_worker_has_its_own_metadata_server_at_the_address_of_gces(pair):
    ask = "curl -sf -H 'Metadata-Flavor: Google' http://metadata.google.internal"
    ask += "/computeMetadata/v1/instance/attributes/agent-worker-number"
    assert [pair.output(ask, index=index) for index in (0, 1)] == ["0", "1"]


@needs_root
def test_what_a_worker_writes_is_neither_on_its_neighbour_nor_on_the_machine(pair):
    files = "/usr/local/bin/own-program /etc/own-file /own-folder /tmp/own-note"
    pair.output(f"sudo touch {files}")
    look = f"ls {files} 2>/dev/null | wc -l"
    assert [pair.output(look, index=index) for index in (0, 1)] == ["4", "0"]
    assert not Path("/usr/local/bin/own-program").exists()


@needs_root
def test_neighbours_reach_each_others_ports_and_nothing_else(pair):
    server = "import socket; s = socket.create_server(('', 8482)); print('up', flush=True); "
    server += "c = s.accept()[0]; c.sendall(b'hello'); c.close()"
    words = pair.words(f'python3 -c "{server}"', index=0)
    first = pair.records[0].address
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"up\n"
        assert pair.output(f"cat < /dev/tcp/{first}/8482", index=1) == "hello"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((first, 8482), timeout=60)
    outside = pair.ssh("exec 3<>/dev/tcp/192.0.2.1/80", index=1)
    assert b"unreachable" in outside.stderr


@needs_root
def test_a_worker_sees_nothing_of_the_account_that_runs_the_emulator(workers, tmp_path):
    (tmp_path / "token").write_text("secret")
    workers.allocate()
    workers.boot()
    assert workers.ssh(f"cat {tmp_path}/token").returncode == 1
    assert workers.output("ls /home").split() == [USER, "tpu-runtime"]
    assert workers.ssh(f"ls {Path.home()}/.ssh").returncode == 2


@needs_root
def test_chips_are_device_files_unless_the_runtime_version_does_not_fit(workers):
    look = "ls /dev | grep -c accel; echo $TPUKIT_EMULATED_DEVICES"
    workers.allocate()
    workers.boot("v6e-8", runtime_version="v2-alpha-tpuv6e")
    assert workers.output(look).split() == ["8", "8"]
    workers.allocate(node=NODE + "2")
    workers.boot("v6e-8", NODE + "2", runtime_version="tpu-ubuntu2204-base")
    assert workers.output(look).split() == ["0", "0"]


@needs_root
def test_a_mode_that_a_worker_gives_a_device_file_is_not_given_to_the_machine_s(workers):
    before = Path("/dev/null").stat().st_mode
    workers.allocate()
    workers.boot()
    look = "sudo chmod 600 /dev/full /dev/accel0; echo x > /dev/null; stat -c '%a %F' /dev/full"
    assert workers.output(look) == "600 character special file"
    assert Path("/dev/null").stat().st_mode == before
    assert Path("/dev/full").stat().st_mode & 0o777 == 0o666


@needs_root
def test_http_leaves_a_worker_through_the_emulators_proxy(workers):
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    received: list[bytes] = []

    def serve() -> None:
        for _ in range(2):
            connection, _ = listener.accept()
            with connection:
                received.append(connection.recv(4096))
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

    threading.Thread(target=serve, daemon=True).start()
    workers.allocate()
    workers.boot()
    # By the machine's address: a worker keeps 127.0.0.1 for itself.
    ask = f"curl -sf --noproxy '' {{}} http://127.0.0.1:{port}/path?q=1"
    with listener:
        assert workers.output(ask.format("")) == "hi"
        assert workers.output(ask.format("--proxytunnel")) == "hi"
    assert [text.split(b"\r\n")[0] for text in received] == [b"GET /path?q=1 HTTP/1.1"] * 2
    assert b"proxy" not in received[0].lower()


@needs_root
def test_sftp_shows_the_worker_and_not_the_machine(pair):
    pair.output("sudo touch /etc/own-file")
    with pair.client() as client, client.open_sftp() as files:
        assert files.normalize(".") == f"/home/{USER}"
        assert files.normalize("../..") == "/"
        files.stat("/etc/own-file")
        with files.open("/../../tmp/note", "w") as file:
            file.write("hello")
    assert pair.output("cat /tmp/note") == "hello"


@needs_root
def test_sftp_follows_links_on_the_worker_and_never_out_of_it(pair, tmp_path):
    """`/tmp/…` below is a folder of the machine for this process, and of the worker for SFTP."""
    (tmp_path / "there").mkdir()
    pair.output(f"mkdir -p {tmp_path}/there && ln -s {tmp_path}/there up && ln -s loop loop")
    pair.output(
        "ln -s /etc/hostname name && ln -s ../../../../etc/hostname other && ln -s loop/x in"
    )
    with pair.client() as client, client.open_sftp() as files:
        for link in ("name", "other"):
            assert files.open(link).read().decode().strip() == pair.records[0].hostname
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
    assert pair.output(f"stat -c %a {tmp_path}/there; ls {tmp_path}/there; ls up || true") == "711"
    assert list((tmp_path / "there").iterdir()) == []


@needs_root
def test_a_worker_that_nobody_talks_to_has_no_process(pair):
    assert first_processes(pair) == []
    pair.output("true", index=1)
    # Of the command nothing is left: unshare, and the first process beneath it.
    eventually(lambda: len(first_processes(pair)) == 2)


@needs_root
def test_halt_leaves_no_process_mount_or_interface(pair):
    before = traces(pair)
    for index in (0, 1):
        pair.output("env -i setsid sleep 1000 </dev/null >/dev/null 2>&1 &", index=index)
    inside = [pid for pid in first_processes(pair) if alive(pid)]
    pair.host.halt(NODE)
    assert inside
    assert not any(alive(pid) for pid in inside)
    assert first_processes(pair) == []
    assert traces(pair) <= before


@needs_root
def test_a_worker_that_killed_its_first_process_comes_back_with_its_files(workers):
    workers.allocate()
    workers.boot()
    workers.output("sudo touch /etc/kept")
    eventually(lambda: len(first_processes(workers)) == 2)
    holder, *_ = first_processes(workers)  # what of a command has not yet gone comes behind
    os.kill(holder, 9)
    eventually(lambda: not first_processes(workers))
    assert workers.output("ls /etc/kept; hostname").split() == [
        "/etc/kept",
        workers.records[0].hostname,
    ]


@needs_root
@pytest.mark.journey
def test_apt_installs_in_one_worker_and_neither_in_another_nor_on_the_machine(pair, tmp_path):
    """From a repository that this test serves: apt goes through the worker's proxy to it."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        pytest.skip("no apt here: that packages stay inside of a worker is NOT checked")
    repository = make_repository(tmp_path / "repository")
    outside = "127.0.0.2"  # of this machine, and no exception of the worker's proxy
    handler = functools.partial(SimpleHTTPRequestHandler, directory=repository)
    with ThreadingHTTPServer((outside, 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        source = f"deb [trusted=yes] http://{outside}:{server.server_port} ./"
        pair.output(f"echo '{source}' | sudo tee /etc/apt/own.list")
        apt = "sudo apt-get -o Dir::Etc::SourceList=/etc/apt/own.list -o Dir::Etc::SourceParts=-"
        done = pair.ssh(f"{apt} update -q && {apt} install -qy {PACKAGE} && {PACKAGE}")
        server.shutdown()
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    assert done.stdout.endswith(b"it runs\n")
    assert pair.ssh(f"which {PACKAGE}", index=1).returncode == 1
    assert not shutil.which(PACKAGE)


PACKAGE = "tpukit-test-package"


def make_repository(place: Path) -> Path:
    """Return the folder of an apt repository with one package, which is one program."""
    program = place / "content/usr/bin" / PACKAGE
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho it runs\n")
    program.chmod(0o755)
    fields = f"Package: {PACKAGE}\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b>\n"
    fields += "Description: a program\n"
    (place / "content/DEBIAN").mkdir()
    (place / "content/DEBIAN/control").write_text(fields)
    package = place / "package.deb"
    subprocess.run(
        ["dpkg-deb", "--build", place / "content", package], check=True, capture_output=True
    )
    data = package.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    index = f"{fields}Filename: ./package.deb\nSize: {len(data)}\nSHA256: {digest}\n"
    (place / "Packages").write_text(index)
    return place

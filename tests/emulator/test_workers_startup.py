"""What a worker does at its boot, and what it publishes of itself."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
from support.emulated_workers import (
    NODE,
    EmulatedWorkers,
    emulated_workers,
    namespaces,
    needs_curl,
    needs_root,
    portable,
)
from support.processes import eventually

from emulator.conftest import PLACE
from tpukit.emulator.workers.guest_attributes import LARGEST_VALUE, read_attributes, write_attribute

PUBLISH = """import sys, urllib.error, urllib.request, os
path, value, *verb = sys.argv[1:]
address = os.environ['GCE_METADATA_HOST']
url = f'http://{address}/computeMetadata/v1/instance/guest-attributes/{path}'
asked = urllib.request.Request(url, value.encode() or None, {'Metadata-Flavor': 'Google'})
asked.method = verb[0] if verb else 'PUT'
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
try:
    print(opener.open(asked).read().decode())
except urllib.error.HTTPError as error:
    print(error.code)
"""
#: Says who and where it is; two lines, one without its end, and a status.
SCRIPT = """echo "boot of $(hostname) by $(id -un)"
echo "$(hostname | sed s,.*-,,)" "${SSH_CLIENT-none}" >> {marks}
curl -s -X PUT -H 'Metadata-Flavor: Google' --data succeeded --noproxy '*' \\
    "http://$GCE_METADATA_HOST/computeMetadata/v1/instance/guest-attributes/report/status"
printf 'no end'
exit 3
"""


def boot(workers: EmulatedWorkers, script: str) -> None:
    node = {"name": NODE, "id": "1", "acceleratorType": "v3-32", "runtimeVersion": "tpu-vm-base"}
    metadata = {"startup-script": script, "own": "value"}
    workers.host.boot({**node, "metadata": metadata}, workers.records)


@needs_curl
@pytest.mark.parametrize(
    "engine",
    [portable, pytest.param(namespaces, marks=[needs_root, pytest.mark.full_size])],
)
def test_the_start_up_script_runs_once_at_each_boot_before_any_login(tmp_path, engine):
    with emulated_workers(tmp_path, engine) as workers:
        workers.allocate(4)
        for times in (1, 2):
            boot(workers, SCRIPT.replace("{marks}", '"$HOME/marks"'))
            for worker in workers.records:
                folder = tmp_path / "workers" / worker.hostname
                journal, marks = (
                    folder / "etc/startup-script.log",
                    folder / "home" / "root" / "marks",
                )
                ended = "startup-script exit status 3\n"
                eventually(lambda j=journal, n=times, e=ended: read(j).count(e) == n)
                assert read(marks) == f"{worker.index} none\n" * times
                said = f"startup-script: boot of {worker.hostname} by "
                assert read(journal).count(said) == times
                assert f"startup-script: no end\n{ended}" in read(journal)
                assert workers.host.guest_attributes(worker) == {"report/status": "succeeded"}
            shown = workers.output(
                "sudo journalctl --no-pager -u google-startup-scripts.service", index=2
            )
            assert (
                shown
                == read(
                    tmp_path / "workers" / workers.records[2].hostname / "etc/startup-script.log"
                ).strip()
            )
            assert workers.output("journalctl -u ssh") == "-- No entries --"
            workers.host.halt(NODE)


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_a_script_that_runs_is_ended_with_its_worker_and_one_that_cannot_start_is_said(
    workers, caplog
):
    workers.allocate()
    boot(workers, "#!/no/such/interpreter\n")
    journal = workers.directory / "workers" / workers.records[0].hostname / "etc/startup-script.log"
    eventually(lambda: "exit status 12" in read(journal))  # 126 or 127, as bash's version says
    workers.host.halt(NODE)
    boot(workers, "sleep 1000 & echo began $!\nwait")
    eventually(lambda: "began" in read(journal))
    pid = read(journal).rpartition("began ")[2].strip()
    workers.host.halt(NODE)
    eventually(lambda: not os.path.exists(f"/proc/{pid}"))


@pytest.mark.slow
def test_a_worker_publishes_reads_and_withdraws(worker):
    worker.output(f"cat > publish <<'X'\n{PUBLISH}\nX")

    def publish(*words: str) -> str:
        return worker.output(f"python3 publish {' '.join(words)}")

    assert publish("my/key", "'a value'") == ""
    assert publish("my/other", "2") == ""
    assert publish("my/key", "''", "GET") == "a value"
    assert publish("my/", "''", "GET") == "key\nother"
    assert publish("''", "''", "GET") == "my/"
    for path in ("my/none", "none/", "my"):
        assert publish(path, "''", "GET") == "404", path
    for path in ("my", "a/b/c", "a//b", "../x", "a/b%20c"):
        assert publish(path, "x") == "404", path
    worker.output("head -c 100000 /dev/zero | tr '\\0' x > large")
    assert publish("my/key", '"$(cat large)"') == ""
    assert len(publish("my/key", "''", "GET")) == 100_000
    address = worker.output("echo $GCE_METADATA_HOST")
    with socket.create_connection(address.split(":"), timeout=60) as connection:
        path = "/computeMetadata/v1/instance/guest-attributes/my/key"
        head = f"PUT {path} HTTP/1.1\r\nMetadata-Flavor: Google\r\nContent-Length: 999999\r\n\r\n"
        connection.sendall(head.encode() + b"x" * (LARGEST_VALUE + 1))
        assert b" 413 " in connection.recv(100)
    assert publish("my/key", "''", "DELETE") == ""
    assert worker.host.guest_attributes(worker.records[0]) == {"my/other": "2"}


def test_what_a_worker_published_outlives_its_boots_and_goes_with_it(workers):
    [record] = workers.allocate()
    workers.boot()
    workers.output("true")
    folder = workers.directory / "workers" / record.hostname
    assert write_attribute(folder, "a/b", "c")
    workers.host.halt(NODE)
    workers.boot()
    assert workers.host.guest_attributes(record) == {"a/b": "c"}
    (folder / "etc/guest-attributes.json").write_text("[1")
    assert workers.host.guest_attributes(record) == {}
    workers.host.discard(NODE)
    assert read_attributes(folder) == {}


def test_the_api_answers_what_the_workers_published(api, monkeypatch: Any):
    api.create("n")
    api.advance(1000)
    monkeypatch.setattr(api.host, "guest_attributes", lambda worker: {"report/status": "ok"})
    path = f"/v2/{PLACE}/nodes/n:getGuestAttributes"

    def keys(query: str) -> list[tuple[str, str]]:
        [one] = api.call("POST", path, {"queryPath": query})[1]["guestAttributes"]
        return [(item["namespace"], item["key"]) for item in one["queryValue"].get("items", [])]

    assert ("report", "status") in keys("")
    assert ("hostkeys", "ssh-ed25519") in keys("")
    assert keys("report/") == keys("report/status") == [("report", "status")]
    assert keys("report/other") == []

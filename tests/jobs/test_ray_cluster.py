"""A Ray cluster: joined once, completed after a loss, ended whole. A stand-in takes Ray's place.

tests/journeys/test_ray.py does the same with the real Ray.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support import ray_stand_in
from support.clocks import HastyClock
from support.processes import alive
from support.ray_stand_in import lose, starts
from support.ssh_fixtures import ubuntus_or_ours
from support.ssh_server import Server

from tpukit.clock import Deadline, SystemClock
from tpukit.errors import DeadlinePassed, NameTaken, TpukitError
from tpukit.jobs import runs
from tpukit.jobs.ray_cluster import RayCluster, resources
from tpukit.ssh import worker_files
from tpukit.ssh.fan_out import fan_out, values
from tpukit.ssh.worker import RemoteWorker

pytestmark = pytest.mark.slow

servers = pytest.fixture(ubuntus_or_ours)


@pytest.fixture
def cluster(servers: list[Server]) -> Path:
    """The folder that the nodes of all workers share; each worker has the stand-in."""
    folder = servers[0].home / "cluster"
    folder.mkdir()
    folder.chmod(0o777)
    for server in servers:
        ray_stand_in.install(server.home, folder)
        for path in (server.home / worker_files.ROOT).rglob("*"):
            own(path, server)
        own(server.home / worker_files.ROOT, server)
    return folder


def own(path: Path, server: Server) -> None:
    """Give a file to the account of a worker."""
    home = server.home.stat()
    os.chown(path, home.st_uid, home.st_gid, follow_symlinks=False)


#: A look at the cluster counts as a second, but takes less.
CLOCK = HastyClock()


@pytest.fixture
def ray(workers: list[RemoteWorker]) -> RayCluster:
    return RayCluster(workers, CLOCK, lambda line: None)


def soon(seconds: float = 20.0) -> Deadline:
    return Deadline.after(CLOCK, seconds)


def test_the_head_starts_first_and_a_second_call_starts_nothing(
    ray: RayCluster, cluster: Path, workers: list[RemoteWorker], servers: list[Server]
) -> None:
    assert [node.alive for node in ray.nodes()] == [False] * 3
    nodes = ray.up(soon())
    assert [(node.slice, node.worker, node.alive) for node in nodes] == [
        ("demo", worker, True) for worker in range(3)
    ]
    assert starts(cluster)[0] == "demo.0"
    assert sorted(starts(cluster)) == ["demo.0", "demo.1", "demo.2"]
    assert ray.up(soon()) == nodes
    assert len(starts(cluster)) == 3
    assert nodes[0].resources == resources(workers[0])
    ((token, mode),) = {
        tuple(line.split()[1:]) for line in (cluster / "starts").read_text().splitlines()
    }
    assert (token, mode) == (ray.token(), "token")
    for server in servers:
        file = server.home / ".ray/auth_token"
        assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == (token, 0o600)
    listed = runs.states(workers, SystemClock())
    assert not any(token in repr(outcome.value) for outcome in listed)
    commands = [
        " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])
    ]
    assert any("ray start" in command for command in commands)
    assert not any(token in command for command in commands)
    ray.down()


def test_a_lost_node_comes_back_alone(ray: RayCluster, cluster: Path) -> None:
    ray.up(soon())
    token = ray.token()
    lose(cluster, "demo.1")
    assert [node.alive for node in ray.nodes()] == [True, False, True]
    assert all(node.alive for node in ray.up(soon()))
    assert starts(cluster)[3:] == ["demo.1"]
    assert ray.token() == token
    ray.down()


def test_of_two_clients_at_once_one_waits_and_each_node_starts_once(
    cluster: Path, workers: list[RemoteWorker]
) -> None:
    told: list[str] = []
    clients = [RayCluster(order, CLOCK, told.append) for order in (workers, workers[::-1])]
    outcomes = fan_out(clients, lambda client: client.up(Deadline.after(SystemClock(), 120.0)))
    assert all(node.alive for nodes in values(outcomes) for node in nodes)
    assert sorted(starts(cluster)) == ["demo.0", "demo.1", "demo.2"]
    assert any(line.startswith("another client joins them to Ray: PID") for line in told)
    clients[0].down()


def test_without_its_head_all_nodes_start_anew(ray: RayCluster, cluster: Path) -> None:
    ray.up(soon())
    lose(cluster, "demo.0")
    assert all(node.alive for node in ray.up(soon()))
    assert starts(cluster)[3] == "demo.0"
    assert sorted(starts(cluster)[3:]) == ["demo.0", "demo.1", "demo.2"]
    ray.down()


def test_the_head_stays_where_it_is_in_another_order(
    cluster: Path, workers: list[RemoteWorker]
) -> None:
    workers = [workers[0], *(replace(worker, slice="two") for worker in workers[1:])]
    ray = RayCluster(workers, CLOCK, lambda line: None)
    ray.up(soon())
    other = RayCluster(workers[::-1], CLOCK, lambda line: None)
    assert all(node.alive for node in other.nodes())
    assert all(node.alive for node in other.up(soon()))
    assert (other.token(), other.head) == (ray.token(), "demo")
    assert len(starts(cluster)) == 3
    nowhere = RayCluster(workers[1:], CLOCK, lambda line: None)
    assert [node.alive for node in nowhere.nodes()] == [False] * 2
    assert (nowhere.token(), nowhere.runs) == ("", True)
    with pytest.raises(NameTaken, match="belongs to the Ray cluster whose head is") as caught:
        nowhere.up(soon())
    assert str(caught.value.otherwise) == "tpukit ray down two"
    assert all(node.alive for node in ray.nodes())
    ray.down()
    assert (ray.token(), ray.runs) == ("", False)


def test_a_head_that_does_not_answer_is_not_ended(ray: RayCluster, cluster: Path) -> None:
    ray.up(soon())
    (cluster / "silent").touch()
    with pytest.raises(DeadlinePassed, match="Ray is not alive on demo worker 0") as caught:
        ray.up(soon(3.0))
    assert caught.value.exists[0].endswith("on demo worker 0, which goes on")
    assert caught.value.otherwise
    assert caught.value.otherwise.arguments == ("tpukit", "ray", "down", "demo")
    (cluster / "silent").unlink()
    assert all(node.alive for node in ray.up(soon()))
    assert len(starts(cluster)) == 3
    ray.down()


@pytest.mark.parametrize(
    "answer",
    [
        "[" * 100_000,
        '[{"node_name": "demo.0", "resources_total": {"TPU": 1e999}}]',
        f'[{{"node_name": "demo.0", "resources_total": {{"TPU": 1{"0" * 400}}}}}]',
        '[{"node_name": "demo.0"}]',
        "[1]",
        '[{"node_name": "demo.0", "resources_total": 1}]',
    ],
    ids=["deep", "infinite", "huge", "short", "number", "no table"],
)
def test_strange_answers_of_ray(ray: RayCluster, cluster: Path, answer: str) -> None:
    ray.up(soon())
    (cluster / "strange").write_text(answer)
    try:
        assert [node.resources for node in ray.nodes()] == [{}] * 3
    except TpukitError as error:
        assert error.what.endswith("the answer of Ray is not understood")  # noqa: PT017
    ray.down()


@pytest.mark.parametrize("text", ["a; touch broken", "a\nb", "\x1b[31m", "", "ä"])
def test_a_token_that_is_none_is_replaced(
    ray: RayCluster, cluster: Path, servers: list[Server], text: str
) -> None:
    file = servers[0].home / ".ray/auth_token"
    file.parent.mkdir()
    file.write_text(text)
    own(file.parent, servers[0])
    own(file, servers[0])
    ray.up(soon())
    assert len(ray.token()) == 64
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    ray.down()


def test_a_run_with_a_name_like_ours_is_somebodys(
    ray: RayCluster, cluster: Path, workers: list[RemoteWorker]
) -> None:
    runs.start(workers, "ray-train", "sleep 999", "", SystemClock())
    ray.up(soon())
    ray.down()
    states = runs.states(workers, SystemClock(), "ray-train")
    assert [[run.state for run in outcome.value or ()] for outcome in states] == [["running"]] * 3
    runs.end(workers, ["ray-train"], SystemClock())


def test_a_node_that_ends_while_it_starts_is_started_again(ray: RayCluster, cluster: Path) -> None:
    (cluster / "demo.2.fails").write_text("2")
    (cluster / "demo.2.fails").chmod(0o666)
    assert all(node.alive for node in ray.up(soon()))
    assert starts(cluster).count("demo.2") == 3
    ray.down()


def test_a_node_that_always_ends_is_named(ray: RayCluster, cluster: Path) -> None:
    (cluster / "demo.1.fails").write_text("99")
    (cluster / "demo.1.fails").chmod(0o666)
    with pytest.raises(TpukitError, match="Ray ends on demo worker 1 at once") as caught:
        ray.up(soon())
    assert caught.value.fix
    assert caught.value.fix.arguments[:3] == ("tpukit", "attach", "demo")
    assert starts(cluster).count("demo.1") == 4
    ray.down()


def test_the_wait_ends(
    ray: RayCluster, cluster: Path, servers: list[Server], workers: list[RemoteWorker]
) -> None:
    RayCluster([workers[0], workers[2]], CLOCK, lambda line: None).up(soon())
    program = servers[1].home / worker_files.venv("ray") / "bin/ray"
    program.write_text("#!/bin/sh\nexec sleep 999\n")
    with pytest.raises(DeadlinePassed, match="Ray is not alive on demo worker 1"):
        ray.up(soon(3.0))
    ray.down()


def test_down_ends_every_process(ray: RayCluster, cluster: Path) -> None:
    ray.up(soon())
    nodes = [json.loads(file.read_text())[0] for file in cluster.glob("*.node")]
    ray.down()
    assert len(nodes) == 3
    assert not any(map(alive, nodes))
    assert [node.alive for node in ray.nodes()] == [False] * 3
    ray.down()  # and again: there is nothing to end


@pytest.mark.parametrize(
    ("index", "wanted"),
    [(0, {"TPU": 4, "pod": 1, "TPU-v4-16-head": 1}), (1, {"TPU": 4, "pod": 1})],
)
def test_resources_have_the_names_of_ray(index: int, wanted: dict[str, float]) -> None:
    worker = RemoteWorker(index, lambda: None, "pod", accelerator_type="v4-16")  # type: ignore[arg-type,return-value]
    assert resources(worker) == wanted

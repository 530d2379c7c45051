"""One process for each chip of each worker, attached and detached, against the real emulator."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import eventually

from cli.conftest import Local
from tpukit.cli.verbs.run import require_chips
from tpukit.errors import BadInput
from tpukit.ssh.worker import RemoteWorker

Fixtures = pytest.FixtureRequest

pytestmark = pytest.mark.slow

#: Says that it is there, then lasts until a signal, which it answers.
LASTING = (
    "trap 'echo interrupted {chip}; exit 5' INT; "
    "echo $$ >pid.{worker}.{chip}; echo there; while :; do sleep 0.1; done"
)


@pytest.fixture(scope="module")
def pair(local: Local) -> Iterator[str]:
    """A slice of two workers with four chips each."""
    with local.slice("pair", "v4-16") as name:
        yield name


@pytest.fixture(scope="module")
def board(local: Local) -> Iterator[str]:
    """A slice of one worker with four chips, and two devices for each chip."""
    with local.slice("board") as name:
        yield name


def venvs_of(jax_home: Path) -> Path:
    return jax_home / "provisioned/.tpukit/venvs"


def provisioned(local: Local, name: str, venvs: Path) -> None:
    """Give the workers these environments, as after `tpukit provision`."""
    link = f"mkdir -p .tpukit; ln -sfn {venvs} .tpukit/venvs"
    assert local.run("run", name, "--", link).status == 0


def eight(line: str) -> list[str]:
    """Return the line that each process of two workers prints."""
    return [
        f"[{worker}] [chip {chip}] " + line.format(worker=worker, chip=chip)
        for worker in (0, 1)
        for chip in range(4)
    ]


def processes(local: Local, name: str) -> list[str]:
    """Return the processes of LASTING on all workers that still live."""
    line = (
        'for file in pid.*; do kill -0 "$(cat $file)" 2>/dev/null && echo $file; done; rm -f pid.*'
    )
    return local.run("run", name, "--", line).out.splitlines()


def test_each_chip_of_each_worker_gets_a_process_that_knows_its_place(
    local: Local, pair: str
) -> None:
    line = (
        "echo {worker}.{chip} of {chips}, $TPUKIT_CHIP of $TPUKIT_CHIPS, sees $TPU_VISIBLE_CHIPS, "
        "$TPU_CHIPS_PER_PROCESS_BOUNDS by $TPU_PROCESS_BOUNDS, metrics $TPU_RUNTIME_METRICS_PORTS"
    )
    done = local.run("run", pair, "--per-chip", "--", line)
    assert done.status == 0, done.err
    wanted = "{worker}.{chip} of 4, {chip} of 4, sees {chip}, 1,1,1 by 1,1,1, metrics 843"
    lines = sorted(done.out.splitlines())
    assert [line[:-1] for line in lines] == eight(wanted)
    assert [line[-1] for line in lines] == [*"1234"] * 2


def test_each_process_has_ports_of_its_own(local: Local, pair: str) -> None:
    line = "echo $TPU_PROCESS_ADDRESSES localhost:$TPU_PROCESS_PORT $JAX_COORDINATOR_BIND_ADDRESS"
    rows = [
        row.split()[3:] for row in local.run("run", pair, "--per-chip", "--", line).out.splitlines()
    ]
    assert len(rows) == 8
    assert all(addresses == own for addresses, own, _ in rows)
    assert len({port for row in rows[:4] for port in row}) == 8


@pytest.mark.parametrize(("name", "workers", "devices"), [("board", 1, 2), ("pair", 2, 1)])
def test_jax_sees_the_devices_of_one_chip_in_each_process(
    local: Local, name: str, workers: int, devices: int, jax_home: Path, request: Fixtures
) -> None:
    """Also a program that looks for other workers: its chip is the whole slice. A v3 has two."""
    request.getfixturevalue(name)
    provisioned(local, name, venvs_of(jax_home))
    program = (
        "import jax; jax.distributed.initialize(); "
        "print(jax.process_count(), jax.device_count(), jax.numpy.ones({worker} + {chip}).sum())"
    )
    words = ("--per-chip", "--deadline", "4m", "--", "python", "-c", program)
    done = local.run("run", name, *words)
    assert done.status == 0, done.err
    results = [line.rpartition("] ")[2] for line in sorted(done.out.splitlines())]
    assert results == [
        f"1 {devices} {worker + chip}.0" for worker in range(workers) for chip in range(4)
    ]


def test_the_highest_status_is_the_workers_and_each_failed_chip_is_named(
    local: Local, pair: str
) -> None:
    done = local.run("run", pair, "--per-chip", "--", "exit $(({worker} * {chips} + {chip}))")
    assert done.status == 7
    failed = [f"[{number // 4}] [chip {number % 4}]" for number in range(1, 8)]
    for number, mark in enumerate(failed, 1):
        assert f"{mark} tpukit: exited with status {number}\n" in done.err
    assert "warning: pair worker 1 exited with status 7\n" in done.err


def test_a_process_that_a_signal_ends_has_the_status_of_a_shell(local: Local, board: str) -> None:
    done = local.run("run", board, "--per-chip", "--", "kill -9 $$")
    assert done.status == 137
    assert "[chip 3] tpukit: exited with status 137\n" in done.err


def test_lines_are_whole_and_stay_on_their_stream(local: Local, board: str) -> None:
    line = "printf 'one\\ntw'; sleep 0.1; printf 'o\\n\\nlast'; echo apart >&2"
    done = local.run("run", board, "--per-chip", "--", line)
    marks = [f"[chip {chip}]" for chip in range(4)]
    whole = [f"{mark} {text}" for mark in marks for text in ("", "last", "one", "two")]
    assert sorted(done.out.splitlines()) == whole
    assert sorted(done.err.splitlines()) == [f"{mark} apart" for mark in marks]


def test_words_run_as_given_as_root_and_with_variables(local: Local, board: str) -> None:
    words = (
        "--sudo",
        "--env",
        "GREETING=good  day",
        "--",
        "printenv",
        "GREETING",
        "TPU_VISIBLE_CHIPS",
    )
    done = local.run("run", board, "--per-chip", *words)
    assert done.status == 0, done.err
    both = [f"[chip {chip}] {text}" for chip in range(4) for text in (str(chip), "good  day")]
    assert sorted(done.out.splitlines()) == both


def test_ctrl_c_reaches_every_process_once_and_shows_its_last_output(
    local: Local, pair: str
) -> None:
    process = local.start("run", pair, "--per-chip", "--", LASTING)
    assert process.stdout
    assert sorted(process.stdout.readline() for _ in range(8)) == [
        f"{mark}\n" for mark in eight("there")
    ]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert sorted(out.splitlines()) == eight("interrupted {chip}")
    assert processes(local, pair) == []


def test_a_detached_run_is_followed_listed_and_killed(local: Local, pair: str) -> None:
    done = local.run("run", pair, "--per-chip", "--detach", "--", LASTING)
    assert done.status == 0, done.err
    run = done.out.strip()
    eventually(lambda: sorted(local.run("logs", pair, run).out.splitlines()) == eight("there"))
    ended = local.run("kill", pair, run, "--signal", "INT", "--json")
    assert (ended.status, ended.out.count('"forced": 0')) == (0, 2), ended.out
    assert processes(local, pair) == []
    followed = local.run("attach", pair, run)
    assert followed.status == 5
    assert {*eight("interrupted {chip}"), *eight("tpukit: exited with status 5")} <= {
        *followed.out.splitlines()
    }


def test_logs_can_show_one_chip_as_its_process_wrote_it(local: Local, pair: str) -> None:
    """A tail counts the lines of that chip only, wherever those of the others are."""
    line = "test {chip} = 2 || sleep 0.3; seq 1 3; echo {worker}{chip}"
    run = local.run("run", pair, "--per-chip", "--detach", "--", line).out.strip()
    assert len(local.run("logs", pair, run, "-f").out.splitlines()) == 32
    one = local.run("logs", pair, run, "--worker", "1", "--chip", "2")
    assert one.out == "1\n2\n3\n12\n"
    both = local.run("logs", pair, run, "-f", "--chip", "2", "--tail", "2")
    assert sorted(both.out.splitlines()) == ["[0] 02", "[0] 3", "[1] 12", "[1] 3"]
    none = local.run("logs", pair, run, "--chip", "9")
    assert (none.status, none.out) == (0, "")
    assert f"run {run} has written nothing on chip 9\n" in none.err


def test_train_runs_a_pushed_program_on_each_chip(local: Local, board: str, tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text('echo "seed $1" >"result-$1"; cat "result-$1"\n')
    done = local.run(
        "train", board, "--per-chip", "--push", str(tmp_path), "--", "sh train.sh {chip}"
    )
    assert done.status == 0, done.err
    assert sorted(done.out.splitlines()) == [f"[chip {chip}] seed {chip}" for chip in range(4)]


def test_a_process_does_not_wait_for_the_other_slices_of_a_multislice(
    local: Local, board: str
) -> None:
    line = "echo ${MEGASCALE_NUM_SLICES:-none} ${MEGASCALE_SLICE_ID:-none}"
    words = ("--env", "MEGASCALE_NUM_SLICES=2", "--env", "MEGASCALE_SLICE_ID=1", "--", line)
    done = local.run("run", board, "--per-chip", *words)
    assert sorted(done.out.splitlines()) == [f"[chip {chip}] none none" for chip in range(4)]


def test_a_long_command_knows_its_chip(local: Local, board: str) -> None:
    """The four commands together would be longer than an argument may be."""
    line = f": {'x' * 60_000}; echo {{chip}} of {{chips}} {{{{chip}}}}"
    done = local.run("run", board, "--per-chip", "--", line)
    assert sorted(done.out.splitlines()) == [
        f"[chip {chip}] {chip} of 4 {{chip}}" for chip in range(4)
    ], done.err[-500:]


def test_a_command_without_per_chip_keeps_its_braces(local: Local, board: str) -> None:
    assert local.run("run", board, "--", "echo {chip} of {chips}").out == "{chip} of {chips}\n"


def test_what_cannot_be_combined_is_refused(local: Local, board: str) -> None:
    refused = local.run("run", board, "--per-chip", "--stdin", "--", "cat").says(2)
    assert "--stdin and --per-chip exclude each other" in refused.err


def test_a_worker_with_an_unknown_number_of_chips_is_refused() -> None:
    worker = RemoteWorker(0, lambda: pytest.fail("connects"), "new", accelerator_type="tpu9-8")
    with pytest.raises(BadInput, match="how many chips a worker of new has is unknown"):
        require_chips([worker])


def test_the_smoke_test_computes_on_each_chip_alone(
    local: Local, board: str, jax_home: Path
) -> None:
    provisioned(local, board, venvs_of(jax_home))
    done = local.run("smoke", board, "--per-chip", "--json")
    assert done.status == 0, done.err
    seen = [
        (worker["worker"], worker["chip"], worker["devices"], worker["global_sum"], worker["ok"])
        for worker in done.document["smoke"]["workers"]
    ]
    assert seen == [(0, chip, 2, 3.0, True) for chip in range(4)]


def test_the_smoke_test_names_the_chip_whose_process_sees_others(
    local: Local, board: str, jax_home: Path, tmp_path: Path
) -> None:
    """The process of chip 2 sees all devices, as if nothing had split them."""
    python = tmp_path / "jax/bin/python"
    python.parent.mkdir(parents=True)
    seen = '[ "$TPUKIT_CHIP" != 2 ] || TPUKIT_EMULATED_DEVICES=8'
    python.write_text(f'#!/bin/sh\n{seen}\nexec {venvs_of(jax_home)}/jax/bin/python "$@"\n')
    python.chmod(0o755)
    provisioned(local, board, tmp_path)
    failed = local.run("smoke", board, "--per-chip").says(10)
    assert "error: the smoke test failed on worker 0\n" in failed.err
    assert "chip 2: 8 of 2 devices" in failed.err


def test_the_smoke_test_of_chips_has_one_level(local: Local, board: str) -> None:
    refused = local.run("smoke", board, "--per-chip", "--level", "2").says(2)
    assert "--per-chip needs level 1" in refused.err

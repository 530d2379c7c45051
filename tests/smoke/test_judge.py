"""The smoke test cannot pass falsely: every kind of wrong answer is caught and named."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.smoke_answers import BENCH, RIGHT, SOAK, line

from tpukit.accelerators import AcceleratorType
from tpukit.errors import DeadlinePassed
from tpukit.provision.recipes import Recipe
from tpukit.smoke.judge import DIGEST, STAND_IN_DIGEST, Expectation, Observation, judge

V3_8 = AcceleratorType.parse("v3-8")
V4_16 = AcceleratorType.parse("v4-16")
STAND_IN = {
    **RIGHT,
    "emulated": 8,
    "platform": "cpu",
    "device_kind": "cpu",
    "digests": [[STAND_IN_DIGEST] * 2] * 8,
    "memory_bytes": [None] * 8,
}


def observed(stdout: bytes, status: int = 0, **more: object) -> Observation:
    return Observation(0, status=status, stdout=stdout, **more)


def verdict(*observations: Observation, accelerator=V3_8, framework="jax"):
    return judge(observations, Expectation(accelerator, Recipe.named(framework), len(observations)))


def test_eight_tpu_cores_with_the_right_numbers_pass():
    report = verdict(observed(b"a warning\n" + line() + b"a farewell"))
    (worker,) = report.workers
    assert report.ok
    assert report.stand_in == ""
    assert (worker.version, worker.platform, worker.device_kind) == ("0.10.2", "tpu", "TPU v3")
    assert (worker.matmul, worker.global_sum, worker.devices) == (DIGEST, 36.0, 8)
    assert worker.log_tail == ()


def test_an_emulated_slice_passes_and_says_what_stood_in():
    report = verdict(observed(line(**STAND_IN), emulated_devices=8))
    assert report.ok
    assert report.stand_in == "8 CPU devices standing in for 8 TPU cores"
    assert report.workers[0].emulated


def test_what_stands_in_is_counted_in_the_accelerators_own_unit():
    one = {"digests": [[STAND_IN_DIGEST] * 2], "indices": [0], "memory_bytes": [None], "ring": [1]}
    seen = {**STAND_IN, "devices": 1, "global_devices": 1, **one}
    report = verdict(
        observed(line(**{**seen, "global_sum": 1.0}), emulated_devices=1),
        accelerator=AcceleratorType.parse("v5litepod-1"),
    )
    assert report.ok
    assert report.stand_in == "1 CPU device standing in for 1 TPU chip"


RIGHT_PAIR = [DIGEST, DIGEST]
MUTANTS = {
    "7 of 8 devices": (
        line(devices=7, global_devices=7, digests=[RIGHT_PAIR] * 7, global_sum=28.0),
        "7 of 8 devices; 7 of 8 devices in the whole slice; ",
    ),
    "one device idle": (line(digests=[RIGHT_PAIR] * 7), "7 of 8 devices multiplied"),
    "one device wrong": (
        line(digests=[*[RIGHT_PAIR] * 7, ["0" * 16] * 2]),
        f"device 7 multiplied wrong: not the bits {DIGEST}",
    ),
    "one device wrong now and then": (
        line(digests=[RIGHT_PAIR, [DIGEST, "0" * 16], *[RIGHT_PAIR] * 6]),
        "device 1 found two results for one product",
    ),
    "one device that multiplied once": (
        line(digests=[RIGHT_PAIR, [DIGEST], *[RIGHT_PAIR] * 6]),
        "device 1 multiplied wrong",
    ),
    "all devices wrong": (
        line(digests=[["0" * 16] * 2] * 8),
        "devices 0, 1, 2, 3, 4, 5, 6, 7 multiplied wrong",
    ),
    "the product of the stand-in": (line(digests=STAND_IN["digests"]), "multiplied wrong"),
    "half the memory": (
        line(memory_bytes=[2**34, 2**34, 2**33, *[2**34] * 5]),
        "device 2 offer only 8.0 GiB of HBM",
    ),
    "a sum without one device": (
        line(global_sum=32.0, missing=[3]),
        "the sum over all devices is 32.0, not 36.0; the sum lacks device 3",
    ),
    "a ring that skips": (
        line(ring=[8, 1, 2, 2, 4, 5, 6, 7]),
        "device 3 got another number than their neighbour's",
    ),
    "no ring": (line(ring=[]), "0 of 8 devices got their neighbour's number"),
    "one device twice": (line(indices=[0, 0, *range(2, 8)]), "two of its devices are one"),
    "an infinite sum": (line(global_sum=float("inf")), "the sum over all devices is inf, not 36.0"),
    "another sum": (line(global_sum=35.0), "the sum over all devices is 35.0, not 36.0"),
    "the CPU": (line(platform="cpu"), "it computed on platform cpu, not tpu"),
    "the CPU that says it is emulated": (
        line(**STAND_IN),
        "it does not know whether it is emulated; it computed on platform cpu, not tpu; "
        "its devices are cpu, not TPU v3",
    ),
    "another TPU": (line(device_kind="TPU v2"), "its devices are TPU v2, not TPU v3"),
    "another framework": (line(framework="torch_xla"), "it computed with torch_xla, not jax"),
    "two processes": (line(processes=2), "2 of 1 workers joined"),
    "two answers": (line() + line(), "the program gave 2 answers"),
    "no answer": (b"all good\n", "the program gave no answer and ended with status 0"),
    "silence": (b"", "the program gave no answer and ended with status 0"),
    "not JSON": (b"TPUKIT-SMOKE {]\n", "the program's answer makes no sense: "),
    "half a document": (b'TPUKIT-SMOKE {"framework": "jax"}\n', "makes no sense: versions Field"),
    "numbers as words": (line(devices="8"), "makes no sense: devices Input should be"),
    "negative devices": (line(devices=-8), "makes no sense: devices Input should be"),
    "true for one": (line(processes=True), "makes no sense: processes Input should be"),
    "one field more": (line(extra=1), "makes no sense: extra Extra inputs"),
    "deep nesting": (b"TPUKIT-SMOKE " + b"[" * 200_000 + b"\n", "makes no sense: "),
    "a long list": (line(digests=[[]] * 5000), "makes no sense: digests Tuple should have"),
    "a long word": (line(platform="x" * 2_000_000), "makes no sense: platform String should"),
    "not text": (b"TPUKIT-SMOKE \xff\xfe\x00\n", "makes no sense: "),
    "escape codes": (line(platform="\x1b[2Jtpu"), "platform \\x1b[2Jtpu, not tpu"),
    "a lookalike": (line(platform="tpu "), "it computed on platform tpu, not tpu"),
}


def test_every_wrong_answer_fails_and_is_named():
    for name, (output, said) in MUTANTS.items():
        report = verdict(observed(output))
        (worker,) = report.workers
        assert not report.ok, name
        assert said in worker.error, name
        assert "\x1b" not in worker.error + worker.platform, name
        assert len(worker.error) < 500, name
        json.dumps(report.document(), allow_nan=False)


def test_a_right_answer_of_a_program_that_then_fails_is_a_failure():
    (worker,) = verdict(observed(line(), status=134)).workers
    assert worker.error == "the program ended with status 134"


def test_a_crash_shows_the_last_lines_of_the_log_harmlessly():
    log = b"\n".join(b"line %d" % number for number in range(40)) + b"\n\x1b]0;title\x07 end\n"
    (worker,) = verdict(observed(b"", status=1, stderr=log)).workers
    assert worker.error == "the program gave no answer and ended with status 1"
    assert worker.log_tail[-2:] == ("line 39", "\\x1b]0;title\\x07 end")
    assert len(worker.log_tail) == 15


def test_a_program_that_ended_itself_shows_where_it_hung():
    hung = b"noise\nTimeout (0:01:00)!\nThread 0x1 (most recent call first):\n  File innermost\n"
    seen = observed(b"", status=1, stderr=hung + b"  outer\n" * 40, seconds=60.2)
    (worker,) = verdict(seen).workers
    assert worker.error == "no answer within 60 s"
    assert isinstance(worker.cause, DeadlinePassed)
    assert worker.log_tail[:3] == (
        "Timeout (0:01:00)!",
        "Thread 0x1 (most recent call first):",
        "  File innermost",
    )


V6E_4 = AcceleratorType.parse("v6e-4")
#: As users have reported them: worker_errors.toml names the reports.
CHIP_FAILURES = {
    "jaxlib: INTERNAL: Failed to get global TPU topology.": ("vbarcontrolagent (port 8353)", True),
    "Unable to initialize backend 'tpu': No hardware is found.": ("vbarcontrolagent", True),
    "UNKNOWN: TPU initialization failed: open(/dev/vfio/0): Device or resource busy: Device or "
    "resource busy; Couldn't open iommu group /dev/vfio/0": ("another process holds", False),
    "ABORTED: The TPU is already in use by another process": ("libtpu's lock", False),
}


@pytest.mark.parametrize("text", CHIP_FAILURES)
def test_a_known_text_of_libtpu_s_has_a_cause_and_a_remedy(text):
    said, new_slice = CHIP_FAILURES[text]
    stderr = f"Traceback (most recent call last):\nRuntimeError: {text} (set JAX_PLATFORMS='')\n"
    report = verdict(observed(b"", status=1, stderr=stderr.encode()), accelerator=V6E_4)
    (worker,) = report.workers
    assert said in worker.error
    assert ("runtime version v2-alpha-tpuv6e" in str(worker.cause.fix)) is new_slice
    assert any(text in line for line in worker.log_tail)


def test_an_answer_is_judged_by_itself_whatever_libtpu_has_printed():
    text = b"Failed to get global TPU topology, trying again\n"
    assert verdict(observed(line(), stderr=text)).ok


def test_log_files_of_another_user_do_not_hide_what_failed():
    noise = (
        b"Could not open the log file '/tmp/tpu_logs/tpu_driver.t1v-n-796acc90-w-0.kevin.log.INFO."
        b"20250925-162309.72655': Permission denied\nCould not open any log file.\n"
    )
    seen = observed(b"", status=1, stderr=b"ImportError: numpy\n" + noise * 40)
    assert verdict(seen).workers[0].log_tail == ("ImportError: numpy",)


def test_a_level_of_which_nothing_was_measured_is_not_passed():
    for level, said in (
        (1, ""),
        (2, "it measured nothing of level 2"),
        (3, "it measured nothing of level 2; it measured nothing of level 3"),
    ):
        expected = Expectation(V3_8, Recipe.named("jax"), 1, level)
        assert judge([observed(line())], expected).workers[0].error == said


@pytest.mark.parametrize(
    ("bench", "soak", "said"),
    [
        ({}, {}, ""),
        ({"all_reduce": []}, {}, "only a part of level 2"),
        ({"devices": {**BENCH["devices"], "hbm": [[380.0] * 2] * 7}}, {}, "only a part of level 2"),
        ({"devices": {"matmul": BENCH["devices"]["matmul"]}}, {}, "only a part of level 2"),
        ({}, {"wrong": []}, "only a part of level 3"),
        ({}, {"flipped": [0] * 7}, "only a part of level 3"),
        ({}, {"rates": [[55.0] * 8, [55.0] * 7]}, "only a part of level 3"),
    ],
)
def test_a_level_of_which_a_part_was_measured_is_not_passed(bench, soak, said):
    answer = line(bench={**BENCH, **bench}, soak={**SOAK, **soak})
    report = judge([observed(answer)], Expectation(V3_8, Recipe.named("jax"), 1, 3))
    assert said in report.workers[0].error
    assert report.ok is not bool(said)


def test_memory_that_a_device_does_not_tell_is_unknown_and_no_failure():
    report = verdict(observed(line(memory_bytes=[None, 2**34, None, *[2**34] * 5])))
    assert report.ok
    assert report.notes == ("worker 0: the HBM of devices 0, 2 is unknown",)
    small = verdict(observed(line(memory_bytes=[None, 2**33, *[2**34] * 6])))
    assert small.workers[0].error == "device 1 offer only 8.0 GiB of HBM"
    stand_in = verdict(observed(line(**STAND_IN), emulated_devices=8))
    assert stand_in.notes == ()


def pair(**changes: object) -> list[Observation]:
    """Two workers of a v4-16: 4 chips each, 8 devices together."""
    shared = {"device_kind": "TPU v4", "devices": 4, "processes": 2, "digests": [RIGHT_PAIR] * 4}
    found = []
    for index in range(2):
        first = 4 * index
        own = {
            "process": index,
            "indices": [*range(first, first + 4)],
            "memory_bytes": [31 * 2**30] * 4,
            "ring": [first or 8, first + 1, first + 2, first + 3],
        }
        found.append(Observation(index, status=0, stdout=line(**{**shared, **own, **changes})))
    return found


def test_two_workers_that_join_pass():
    assert verdict(*pair(), accelerator=V4_16).ok


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"global_devices": 4, "global_sum": 10.0, "processes": 1}, "1 of 2 workers joined"),
        ({"process": 0}, "two workers have the same process number"),
        ({"indices": [0, 1, 2, 3]}, "two workers have the same device"),
        ({"missing": [1, 6], "global_sum": 27.0}, "of the whole slice"),
    ],
)
def test_workers_that_did_not_join_fail(changes, said):
    report = verdict(*pair(**changes), accelerator=V4_16)
    assert all(said in worker.error for worker in report.workers)


def test_workers_with_different_versions_fail():
    first, _ = pair()
    _, second = pair(versions={"jax": "0.12.0.1"})
    report = verdict(first, second, accelerator=V4_16)
    assert [worker.error for worker in report.workers] == [
        "the workers run different versions: 0.10.2, 0.12.0.1"
    ] * 2


def test_an_emulated_worker_beside_a_tpu_vm_fails_both():
    first, second = pair()
    report = verdict(first, replace(second, emulated_devices=4), accelerator=V4_16)
    assert all("in one slice" in worker.error for worker in report.workers)


def test_who_hung_because_another_failed_is_not_blamed():
    crashed = Observation(1, status=1, stderr=b"ImportError: numpy\n")
    hung = Observation(0, error=DeadlinePassed("no answer within 60 s"), waiting=True)
    report = verdict(hung, crashed, accelerator=V4_16)
    assert report.workers[0].error == "waited for worker 1"
    assert report.workers[0].cause is None
    assert report.workers[1].log_tail == ("ImportError: numpy",)
    ended = observed(b"", status=1, stderr=b"Timeout (0:01:00)!\n", seconds=60.2)
    report = verdict(ended, crashed, accelerator=V4_16)
    assert report.workers[0].error == "waited for worker 1"


def test_when_all_hang_nobody_is_blamed_for_the_others():
    hung = [
        Observation(index, error=DeadlinePassed("no answer within 60 s"), waiting=True)
        for index in (0, 1)
    ]
    report = verdict(*hung, accelerator=V4_16)
    assert [worker.error for worker in report.workers] == ["no answer within 60 s"] * 2


def test_another_number_of_workers_than_the_table_has_is_noted_and_no_failure():
    seen = {"device_kind": "TPU v4", "memory_bytes": [31 * 2**30] * 8}
    report = verdict(observed(line(**seen)), accelerator=V4_16)
    assert report.ok
    assert report.notes == ("v4-16 should have 2 workers, the slice has 1",)


def test_torch_xla_need_not_tell_the_kind_of_its_devices():
    seen = {"framework": "torch_xla", "versions": {"torch_xla": "2.9.0"}, "device_kind": ""}
    without_ring = {"indices": [], "memory_bytes": [], "ring": []}
    assert verdict(observed(line(**seen, **without_ring)), framework="torch_xla").ok

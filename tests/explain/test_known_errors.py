"""Error texts as users meet them: as they are, with other names, and wrapped by other programs."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tpukit.explain.known_errors import (
    PAGE,
    ROLES,
    explanations,
    first_known,
    of_program,
    worker_errors,
)
from tpukit.google.failures import api_errors
from tpukit.provision import recipe_names

ROWS = {row["id"]: row for _, row in (*api_errors(), *worker_errors())}
EXAMPLES = [
    (row["id"], text)
    for row in ROWS.values()
    if row.get("explain", True) and row.get("where") != "install"
    for text in row["examples"]
]
_RETRIES = {"same-zone", "wait", "other-zone", "after-fix", "never", "none"}


def test_the_page_of_errors_has_every_entry() -> None:
    page = (Path(__file__).parents[2] / PAGE).read_text(encoding="utf-8")
    explained = [name for name, row in ROWS.items() if row.get("explain", True)]
    assert sorted(re.findall(r"^### (.+)$", page, re.MULTILINE)) == sorted(explained)


def gcloud(text: str) -> str:
    message = json.dumps({"code": 8, "message": text}, indent=2)
    return f"ERROR: (gcloud.compute.tpus.tpu-vm.create) {message}\n"


def terraform(text: str) -> str:
    """It draws a frame, and breaks long lines."""
    message = f"Error: Error waiting for Creating Node: {text}"
    lines = textwrap.wrap(message, 76, break_long_words=False, break_on_hyphens=False)
    return "\n".join(
        ["╷", *(f"│ {line}" for line in lines), "│", "│   with google_tpu_v2_vm.demo,", "╵"]
    )


def sky_pilot(text: str) -> str:
    begun = "I 11-26 10:00:00 provisioner.py:66] Launching on GCP us-east5 (us-east5-b)\n"
    return f"{begun}E 11-26 10:00:41 provisioner.py:141] {RuntimeError(text)!r}\n"


def python(text: str) -> str:
    return (
        "Traceback (most recent call last):\n"
        '  File "train.py", line 12, in <module>\n'
        "    main()\n"
        f"RuntimeError: {text}\n"
    )


def painted(text: str) -> str:
    return f"\x1b[31m[worker 3] \x1b[0m{text}\n\x1b[2mdone\x1b[0m\n"


def elsewhere(text: str) -> str:
    text = re.sub(r"\b[a-z]+-[a-z]+\d-[a-f]\b", "asia-northeast1-b", text)
    return re.sub(r"EID: 0x[0-9a-f]+", "EID: 0x1234567890abcdef", text)


VARIANTS = [gcloud, terraform, sky_pilot, python, painted, elsewhere]


def first(text: str) -> str:
    known = explanations(text)
    return known[0].id if known else ""


@pytest.mark.parametrize(("name", "text"), EXAMPLES)
def test_each_example_is_explained_by_its_own_row(name: str, text: str) -> None:
    assert first(text) == name


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_wrapped_text_is_explained_as_the_text_itself(variant: Callable[[str], str]) -> None:
    texts = [(name, variant(text)) for name, text in EXAMPLES]
    wrong = [(name, first(text)) for name, text in texts if first(text) != name]
    assert len(wrong) <= len(texts) * 0.05, wrong
    retries = [(ROWS[name]["retry"], ROWS[other]["retry"]) for name, other in wrong if other]
    assert all(expected == told for expected, told in retries), wrong


def test_there_are_hundreds_of_variants() -> None:
    assert len(EXAMPLES) * len(VARIANTS) >= 200


def test_a_cause_comes_before_the_line_that_only_reports_it() -> None:
    text = (
        "##### Command execution on worker 2 failed with exit status 1\n"
        "Failed to execute command on multiple workers. This may have happened if you have not "
        "added your SSH key\n"
        "RuntimeError: The TPU is already in use by process with pid 4242\n"
    )
    known = explanations(text)
    assert known[0].id == "tpu-busy-pid"
    assert [ROLES.index(row.role) for row in known] == sorted(
        ROLES.index(row.role) for row in known
    )


def test_the_remedy_of_a_program_s_error_is_a_command_for_its_slice() -> None:
    known = of_program("ModuleNotFoundError: No module named 'torch_xla.core'\n", "demo")
    assert known
    assert known.fix.arguments == ("tpukit", "provision", "demo", "torch_xla")
    for _, row in worker_errors():
        for text in row["examples"] if row["where"] in ("worker", "chips") else ():
            fix = (known := of_program(text, "demo")) and known.fix
            assert "NAME" not in str(fix) or "apt:PACKAGE" in str(fix), row["id"]


def test_only_what_is_no_framework_is_a_missing_module() -> None:
    assert first("ModuleNotFoundError: No module named 'jaxtyping'") == "no-module"
    assert [known.id for known in explanations("No module named 'jax'")] == ["no-framework"]


def test_a_missing_framework_is_known_for_every_recipe() -> None:
    for name in recipe_names():
        text = f"ModuleNotFoundError: No module named '{name}'"
        assert [known.id for known in explanations(text)] == ["no-framework"], name


def test_an_unknown_text_has_no_explanation() -> None:
    assert explanations("all is well") == []


def test_every_row_has_a_cause_a_remedy_and_a_source() -> None:
    for row in ROWS.values():
        assert row["retry"] in _RETRIES
        assert row.get("role", "cause") in ROLES
        assert all(row[key] for key in ("cause", "remedy", "source", "examples")), row["id"]


def test_the_runtime_version_is_named_if_it_is_known() -> None:
    text = "No hardware is found. Using default TPU version"
    known = first_known(text, "chips", "v2-alpha-tpuv6e")
    assert known
    assert known.fix.note.endswith("the runtime version v2-alpha-tpuv6e")
    assert explanations(text)[0].fix.note.endswith("the runtime version of its type")

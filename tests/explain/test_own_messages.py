"""Each error message of tpukit's source is known to `explain`, with its exit code."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tpukit
from tpukit.explain.own_messages import KINDS, fitting, messages, own_explanations


def printed() -> Iterator[tuple[str, int]]:
    """Yield each message that the source gives to an error's class, and the exit code."""
    for path in Path(tpukit.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            name = isinstance(node, ast.Call) and getattr(node.func, "id", "")
            if isinstance(node, ast.Call) and name in KINDS and node.args:
                what = node.args[0]
                parts = what.values if isinstance(what, ast.JoinedStr) else [what]
                words = [p.value for p in parts if isinstance(p, ast.Constant)]
                if sum(len(str(word)) for word in words) >= 6:
                    shown = (p.value if isinstance(p, ast.Constant) else "x1" for p in parts)
                    yield "".join(map(str, shown)), KINDS[str(name)].exit_code


def test_each_message_of_the_source_is_known_with_its_exit_code() -> None:
    known, lines = [*messages()], sorted({*printed()})
    assert len(lines) > 300
    wrong = [
        (line, code)
        for line, code in lines
        if code not in [message.kind.exit_code for message in fitting(line, known)]
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "kind", "code", "fix"),
    [
        ("no slice dmo in any zone of the project", "NotFound", 3, "tpukit list"),
        ("there is no profile wrok (did you mean work?)", "BadInput", 2, "tpukit help COMMAND"),
        ("slice demo is PREEMPTED: its workers are gone", "SliceLost", 7, "tpukit watch"),
        (
            "--flex-start and --max-run-duration need each other",
            "BadInput",
            2,
            "--flex-start --max",
        ),
        ("error: no slice a in any zone of the project\nfix: tpukit x", "NotFound", 3, "tpukit x"),
        ("slice demo is gone", "SliceLost", 7, "--recreate"),
    ],
)
def test_a_printed_message_has_its_meaning_and_its_next_step(
    text: str, kind: str, code: int, fix: str
) -> None:
    told = own_explanations(text)[0]
    assert told.id == kind
    assert f"exit {code}: " in told.cause
    assert fix in f"{told.fix} {told.fix.note}"


def test_other_texts_are_none_of_ours() -> None:
    for text in ("all is well", "", "error: something else", "ERROR: no slice a in any zone"):
        assert own_explanations(text) == []


def test_the_source_is_read_only_for_a_text() -> None:
    program = (
        "import sys; from tpukit.cli.main import status; status(['explain', 'PREEMPTED']); "
        "sys.exit('tpukit.explain.own_messages' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)

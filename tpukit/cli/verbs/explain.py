"""`tpukit explain`: the cause of an error text, a state or an exit code, and the remedy."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from typer import Argument

from tpukit.cli.toolkit import Toolkit
from tpukit.console import Cell, View
from tpukit.errors import BadInput, Fix, TpukitError
from tpukit.explain.known_errors import Explanation, explanations
from tpukit.explain.known_words import word_explanations

Text = Annotated[
    list[str] | None,
    Argument(metavar="[TEXT]...", help="An error text, a state or an exit code; default: stdin."),
]
#: The most characters that are read: the end of a log has its last error.
_MOST = 1 << 16


def explain(toolkit: Toolkit, text: Text = None) -> View:
    """Explain an error text, a state or an exit code.

    The likeliest cause comes first. tpukit's own messages can be explained, as well as those of
    Google, gcloud, SSH, JAX, PyTorch and TensorFlow.

    Examples:
      tpukit explain PREEMPTED
      tpukit explain 'There is no more capacity in the zone "us-central2-b"'
      tpukit logs demo train 2>&1 | tpukit explain
    """
    given = " ".join(text) if text else _piped()
    known = word_explanations(given)
    if not known:
        known = explanations(given)
        known += _own(given, "wrapper" if known else "cause")
    if not known:
        raise TpukitError(
            "nothing is known about this text" if given.strip() else "the text is empty",
            fix=Fix(note="give the whole message, from its first line on"),
        )
    complete = toolkit.console.complete
    return _view([replace(explanation, fix=complete(explanation.fix)) for explanation in known])


def _own(text: str, role: str) -> list[Explanation]:
    """Return the explanations of tpukit's own messages; reading them takes a quarter second."""
    from tpukit.explain.own_messages import own_explanations

    return [replace(explanation, role=role) for explanation in own_explanations(text)]


def _piped() -> str:
    if sys.stdin is None or sys.stdin.isatty():
        fix = Fix.command("tpukit", "explain", "stockout")
        raise BadInput("there is no text to explain", fix=fix)
    return sys.stdin.buffer.read()[-_MOST:].decode(errors="replace")


def _view(known: Sequence[Explanation]) -> View:
    rows = [
        (
            explanation.id,
            explanation.cause,
            _remedy(explanation.fix),
            Cell(explanation.role, "" if explanation.role == "cause" else explanation.role),
            Cell(explanation.retry, "" if explanation.retry == "none" else explanation.retry),
            explanation.page,
            explanation.source,
        )
        for explanation in known
    ]
    document = {"explanations": [explanation.document() for explanation in known]}
    return View(document, ("KNOWN AS", "CAUSE", "FIX", "ROLE", "RETRY", "PAGE", "SOURCE"), rows)


def _remedy(fix: Fix) -> str:
    return f"{fix}: {fix.note}" if fix.arguments and fix.note else str(fix)

"""A picture of the figures of a slice's smoke tests, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tpukit.errors import BadInput, Fix
from tpukit.smoke.history import KeptRun
from tpukit.text import one_line

#: The formats of pictures, by the end of their names.
FORMATS = (".svg", ".png")
_KINDS = ("matmul", "hbm", "link", "all-reduce")


def check_plot(path: Path) -> None:
    """Raise `BadInput` for an unknown format, a missing folder, or without matplotlib."""
    if path.suffix not in FORMATS:
        raise BadInput(f"a picture's name ends in {' or '.join(FORMATS)}: {one_line(str(path))}")
    if not path.parent.is_dir():
        raise BadInput(f"there is no folder {one_line(str(path.parent))}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise BadInput(
            "cannot draw pictures",
            why="matplotlib is not installed beside tpukit",
            fix=Fix.command("python", "-m", "pip", "install", "tpukit[plot]"),
        ) from None


def plot(runs: Sequence[KeptRun], path: Path, title: str) -> None:
    """Draw the newest run's figures, the earlier ones in grey, and the peak.

    Raises `BadInput` if the file cannot be written, and the errors of `check_plot`.
    """
    check_plot(path)
    from matplotlib.figure import Figure

    kinds = [kind for kind in _KINDS if any(drawn.what == kind for drawn in runs[-1].figures)]
    figure = Figure(figsize=(8, 2.4 * len(kinds) + 0.6), layout="constrained")
    figure.suptitle(title)
    for axes, kind in zip(figure.subplots(len(kinds), squeeze=False)[:, 0], kinds, strict=True):
        for run in runs:
            shown = [drawn for drawn in run.figures if drawn.what == kind]
            newest = run is runs[-1]
            style = (
                {"color": "tab:blue", "marker": "o"} if newest else {"color": "0.8", "marker": "."}
            )
            axes.plot([drawn.place for drawn in shown], [drawn.value for drawn in shown], **style)
        for peak in {drawn.peak for drawn in shown if drawn.peak}:
            axes.axhline(peak, color="tab:red", linestyle="--")
        axes.set_ylim(bottom=0)
        axes.set_ylabel(f"{kind}\n{shown[0].unit}")
        axes.tick_params(axis="x", labelrotation=90, labelsize=6)
    try:
        figure.savefig(path)
    except OSError as error:
        shown_path = one_line(str(path))
        raise BadInput(f"cannot write {shown_path}", reason=error.strerror or "") from error

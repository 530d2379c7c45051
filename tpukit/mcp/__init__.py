"""Tools for coding agents, within limits that a person sets.

The tools are served over the Model Context Protocol; each of them runs one command of tpukit.
"""

from pathlib import Path

from tpukit import __version__


def skill() -> str:
    """Return the skill file for coding agents, for this version of tpukit."""
    text = (Path(__file__).parent / "skill.md").read_text(encoding="utf-8")
    return text.replace("{version}", __version__)

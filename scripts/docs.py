"""Writes the parts of the documentation that come from the code.

A part stands between `<!-- generated: NAME -->` and `<!-- end -->`; NAME is a function of `PARTS`.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import error_entries
import typer

from tpukit import accelerators, errors
from tpukit.cli import hardware as hardware_facts
from tpukit.cli.global_flags import GlobalFlags
from tpukit.cli.main import application
from tpukit.emulator.faults.presets import PRESETS
from tpukit.emulator.faults.worker_faults import KINDS
from tpukit.provision import system_steps
from tpukit.settings.table import DEFINITIONS
from tpukit.smoke import measurements

ROOT = Path(__file__).resolve().parent.parent
PART = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
GENERATIONS = [accelerators.types_of(name)[0].facts for name in accelerators.GENERATIONS]
#: A line of the tree in the docstring of tpukit/errors.py.
ERROR = re.compile(r"(\w+) +(\d+) {2,}(.+)")


def pages() -> list[Path]:
    """Return every page of the documentation, the README first."""
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def filled(text: str) -> str:
    """Return a page with its generated parts brought up to date."""
    return PART.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]()}\n\n{found[3]}", text)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def error_rows() -> list[tuple[str, str, str]]:
    """Return (class, exit code, meaning) from the docstring of `tpukit.errors`."""
    return [tuple(match) for match in ERROR.findall(errors.__doc__ or "")]


def exit_codes() -> str:
    rows = [("0", "", "success")]
    rows += [(code, f"`{name}`", meaning) for name, code, meaning in error_rows()]
    return table(("status", "kind", "meaning"), rows)


def steps() -> str:
    """Return a table of the system steps from their files."""
    rows = []
    for step in map(system_steps.named, system_steps.step_names()):
        sources = f" ({'; '.join(step.sources)})" if step.sources else ""
        why = f"; {step.why}" if step.why else ""
        rows.append((f"`{step.example or step.name}`", f"{step.description}{why}{sources}"))
    return table(("step", "effect"), rows)


def commands() -> str:
    """Return one section for the global flags and one for each command."""
    root = typer.main.get_command(application())
    shared = [param for param in root.params if param.name in GlobalFlags.__dataclass_fields__]
    intro = "## Global flags\n\nYou can write these before or after the verb.\n"
    return "\n".join([intro, _flags(shared), *_sections("tpukit", root)])


def _sections(path: str, group: Any) -> Iterator[str]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _sections(f"{path} {name}", command)
        else:
            yield _section(f"{path} {name}", command)


def _section(path: str, command: Any) -> str:
    own = [param for param in command.params if param.name not in GlobalFlags.__dataclass_fields__]
    arguments = [each for each in own if each.param_type_name == "argument"]
    usage = " ".join([path, *(_argument(argument) for argument in arguments), "[FLAGS]"])
    text, _, examples = command.help.replace("\b", "").partition("Example")
    parts = [f"\n## {path}\n", f"```text\n{usage}\n```\n", text.strip()]
    examples = "\n".join(line.strip() for line in examples.splitlines()[1:] if line.strip())
    flags = [each for each in own if each not in arguments]
    parts += [f"\n```sh\n{examples}\n```"] if examples else []
    parts += [f"\n{_flags(flags)}"] if flags else []
    return "\n".join(parts)


def _argument(argument: Any) -> str:
    word = argument.metavar or argument.name.upper()
    return word if argument.required or word.startswith("[") else f"[{word}]"


def _flags(flags: Iterable[Any]) -> str:
    return table(("flag", "meaning"), [(_flag(flag), _meaning(flag)) for flag in flags])


def _flag(flag: Any) -> str:
    names = ", ".join(f"`{name}`" for name in flag.opts)
    value = flag.metavar or flag.name.upper()
    return names if flag.is_flag else f"{names} *{value}*"


def _meaning(flag: Any) -> str:
    default = flag.default
    told = default and not flag.is_flag and flag.show_default
    return f"{flag.help} Default: {default}." if told else flag.help


def settings() -> str:
    rows = [
        (
            f"`{definition.name}`",
            f"`{definition.variable}`",
            ", ".join(f"`{name}`" for name in definition.google_variables),
            f"`{definition.gcloud}`" if definition.gcloud else "",
            f"`{definition.default}`" if definition.default else "",
            "never" if definition.personal else "yes" if definition.harmless else "once trusted",
        )
        for definition in DEFINITIONS
    ]
    titles = ("setting", "own variable", "Google's variables", "gcloud", "default", "tpukit.toml")
    return table(titles, rows)


def presets() -> str:
    rows = [
        (f"`{name}`", f"`{call.method}`", f"`{call.status.status}`", _preset_kind(call.kind))
        for name, call in PRESETS.items()
    ]
    return table(("preset", "method", "status", "what fails"), rows)


def _preset_kind(kind: str) -> str:
    return "the operation, after the call was accepted" if kind == "operation" else "the call"


def worker_faults() -> str:
    return table(("fault", "effect"), [(f"`{name}`", text) for name, text in KINDS.items()])


def hardware() -> str:
    """Return a table of chip facts, one column per generation; numbers refer to the sources."""
    columns = [hardware_facts.of_generation(generation) for generation in GENERATIONS]
    rows = [
        [facts[0].name, *(_with_sources(fact) for fact in facts)]
        for facts in zip(*columns, strict=True)
    ]
    return table(["", *(generation.name for generation in GENERATIONS)], rows)


def machines() -> str:
    found = [(generation.name, hardware_facts.machines(generation)) for generation in GENERATIONS]
    rows = [(name, _with_sources(fact)) for name, fact in found]
    return table(("generation", "worker, by its number of chips"), rows)


def gpus() -> str:
    peaks = [
        (
            generation.name,
            f"{generation.peak_bf16_tflops_per_chip} (bfloat16)",
            f"{generation.hbm_gib_per_chip} GiB",
        )
        for generation in GENERATIONS
    ]
    bandwidths = [f"{generation.hbm_gbytes_per_second_per_chip[0]:,}" for generation in GENERATIONS]
    rows = [
        (f"TPU {name}", peak, memory, bandwidth, "above")
        for (name, peak, memory), bandwidth in zip(peaks, bandwidths, strict=True)
    ]
    rows += [
        (
            gpu["name"],
            f"{gpu['tflops']} ({gpu['format']})",
            gpu["memory"],
            f"{gpu['gbytes_per_second']:,}",
            gpu["source"],
        )
        for gpu in _page_data()["gpus"]
    ]
    return table(("chip", "TFLOP/s", "memory", "GB/s", "source"), rows)


def corrections() -> str:
    rows = [(correction["said"], correction["right"]) for correction in _page_data()["corrections"]]
    return table(("claim", "correction"), rows)


def thresholds() -> str:
    """Return a row for each figure of `smoke`: the limits of a warning and of a failure."""
    of = {"outlier": "the median of all devices", "soak": "the first minute's median"}
    of["link-health"] = "a healthy link: a score of 3 of 10 leaves 70%"
    rows = [
        (
            f"`{name}`",
            of.get(name, "the peak"),
            f"{each.warn:.0%}",
            f"{each.fail:.0%}",
            "all" if name in of else ", ".join(each.published),
            f"{each.floor:.0%}" if each.floor else "",
            f"{each.most:.0%}" if each.floor else "",
            "; ".join(each.sources),
        )
        for name, each in measurements.thresholds().items()
    ]
    below = "warning below", "fails below", "on", "fails everywhere below", "and above"
    return table(("figure", "compared with", *below, "published"), rows)


def hardware_sources() -> str:
    return "\n".join(f"{number}. {text}" for text, number in _numbers().items())


def _numbers() -> dict[str, int]:
    """Return the citations of the page, numbered in the order in which they come."""
    facts = [
        fact for generation in GENERATIONS for fact in hardware_facts.of_generation(generation)
    ]
    facts += [hardware_facts.machines(generation) for generation in GENERATIONS]
    cited = dict.fromkeys(source for fact in facts for source in fact.sources)
    return {source: number for number, source in enumerate(cited, 1)}


def _with_sources(fact: hardware_facts.HardwareFact) -> str:
    numbers = _numbers()
    marks = ", ".join(str(numbers[source]) for source in fact.sources)
    return f"{fact.value} [{marks}]" if marks else fact.value


def _page_data() -> dict[str, Any]:
    return tomllib.loads((ROOT / "scripts" / "hardware.toml").read_text(encoding="utf-8"))


PARTS: dict[str, Callable[[], str]] = {
    "steps": steps,
    "commands": commands,
    "exit-codes": exit_codes,
    "settings": settings,
    "presets": presets,
    "worker-faults": worker_faults,
    "hardware": hardware,
    "thresholds": thresholds,
    "machines": machines,
    "gpus": gpus,
    "corrections": corrections,
    "hardware-sources": hardware_sources,
    **error_entries.parts(),
}


def main(arguments: Sequence[str]) -> int:
    stale = [page for page in pages() if filled(page.read_text()) != page.read_text()]
    for page in stale:
        print(page.relative_to(ROOT))
        if "--check" not in arguments:
            page.write_text(filled(page.read_text()))
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

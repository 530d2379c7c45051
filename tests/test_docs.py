"""The documentation: what it shows happens, what it names exists, what is generated is current."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from support.pages import (
    ROOT,
    Outcome,
    blocks,
    environment,
    needs_gcloud,
    needs_namespaces,
    pages,
    run,
    steps,
    stop_emulator,
)

from tpukit import errors
from tpukit.cli.main import application

PAGES = pages()
#: The pages on a terminal of 80 columns, on which no command fails.
DAYS = ROOT / "docs/tutorial/days"
README, TUTORIAL = ROOT / "README.md", ROOT / "docs/tutorial/first-slice.md"
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_SPAN = re.compile(r"`([^`\n]+)`")
_FILE = re.compile(r"[a-z0-9_-]+/[a-z0-9_./-]*[a-z0-9]")
_CALL = re.compile(r"(?<![\w./\"-])tpukit +(?=[a-z-])([^|;&)#\n]*)")


def label(page: Path) -> str:
    return str(page.relative_to(ROOT))


def executed() -> Iterator[Any]:
    for page in PAGES:
        if page == README:
            continue  # it shows what the tutorial runs
        commands = steps(page.read_text(encoding="utf-8"))
        if commands:
            yield pytest.param(page, id=label(page))


def play(page: Path, home: Path) -> list[Outcome]:
    """Run a page's commands where nobody has used tpukit before."""
    commands = [step.command for step in steps(page.read_text(encoding="utf-8"))]
    variables = environment(home)
    try:
        return run(commands, home, variables, 80 if page.parent == DAYS else 120)
    finally:
        stop_emulator(variables)


@pytest.mark.pages
@pytest.mark.parametrize("page", [*executed()])
def test_what_a_page_shows_is_what_happens(page: Path, tmp_path: Path) -> None:
    wanted = steps(page.read_text(encoding="utf-8"))
    if any(step.command.startswith("gcloud ") for step in wanted):
        needs_gcloud(label(page))
    if any("--engine namespaces" in step.command for step in wanted):
        needs_namespaces(label(page))
    outcomes = play(page, tmp_path)
    for step, outcome, after in zip(wanted, outcomes, [*wanted[1:], None], strict=True):
        asked = after is not None and after.asks_status
        assert outcome.status == 0 or asked, f"{step.command}\n{outcome.output}"
        assert outcome.shows(step.shown), f"{step.command}\n{outcome.output}"


def test_on_a_first_day_no_command_fails() -> None:
    """A failing command would be followed by a question for its status."""
    days = [steps(page.read_text(encoding="utf-8")) for page in sorted(DAYS.glob("*.md"))]
    assert len(days) == 3
    assert not [step for day in days for step in day if step.asks_status]


def test_the_pages_that_promise_to_run_do_run() -> None:
    assert {label(each.values[0]) for each in executed()} >= {
        "docs/tutorial/first-slice.md",
        "docs/how-to/run-a-job.md",
        "docs/how-to/run-on-every-worker.md",
        "docs/how-to/use-gcloud-with-the-emulator.md",
        "docs/how-to/install-requirements.md",
        "docs/how-to/measure-a-slice.md",
        "docs/how-to/open-the-firewall.md",
        "docs/how-to/set-up-workers.md",
        "docs/how-to/script-it-in-ci.md",
        "docs/how-to/test-your-ci.md",
        "docs/reference/emulator.md",
    }


def test_the_readme_shows_what_the_tutorial_runs() -> None:
    shown, tried = (steps(page.read_text(encoding="utf-8")) for page in (README, TUTORIAL))
    assert shown
    assert not [step.command for step in shown if step not in tried]


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in _LINK.findall(page.read_text(encoding="utf-8")):
        if target.startswith(("https://", "http://")):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_every_file_of_the_repository_that_is_named_exists(page: Path) -> None:
    """A module may be named by its path below `tpukit/`; other paths are of other places."""
    tops = (ROOT, ROOT / "tpukit")
    files = [span for span in _SPAN.findall(page.read_text("utf-8")) if _FILE.fullmatch(span)]
    ours = [file for file in files if any((top / file.split("/")[0]).is_dir() for top in tops)]
    lost = [file for file in ours if not any((top / file).exists() for top in tops)]
    assert not lost


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_every_command_and_flag_that_is_named_exists(page: Path) -> None:
    for call in calls(page.read_text(encoding="utf-8")):
        verb, unknown = understood(call)
        assert verb is not None, f"no such command: tpukit {call}"
        assert not unknown, f"no such flag: {unknown} in: tpukit {call}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=label)
def test_the_generated_parts_are_current(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == generator().filled(text), "scripts/docs writes them anew"


def test_the_table_of_exit_codes_is_that_of_the_error_classes() -> None:
    classes = {
        name: error.exit_code
        for name, error in vars(errors).items()
        if isinstance(error, type) and issubclass(error, errors.TpukitError)
    }
    described = {name: int(code) for name, code, _ in generator().error_rows()}
    assert described == {name: code for name, code in classes.items() if name in described}
    assert set(classes.values()) == set(described.values())
    for page in ("README.md", "docs/reference/exit-codes.md"):
        shown = re.findall(r"^\| (\d+) \|", (ROOT / page).read_text(), re.MULTILINE)
        assert {int(code) for code in shown} == {0, *classes.values()}


def test_every_dependency_is_explained() -> None:
    text = (ROOT / "docs/explanation/dependencies.md").read_text(encoding="utf-8")
    listed = (
        (ROOT / "pyproject.toml").read_text().partition("dependencies = [")[2].partition("]")[0]
    )
    names = re.findall(r'"([a-z-]+)[<>=]', listed)
    assert names
    assert not [name for name in names if f"**{name}**" not in text]


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen, left = set(), [README]
    while left:
        page = left.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        targets = [link.partition("#")[0] for link in _LINK.findall(page.read_text())]
        left += [
            (page.parent / target).resolve() for target in targets if target and ":" not in target
        ]
    assert set(PAGES) <= seen


def test_the_runner_of_pages_notices_other_output_and_other_statuses(tmp_path: Path) -> None:
    commands = "$ echo a; echo b\na\n…\n$ echo one \\\n> two\none two\n$ false\n$ echo $?\n1\n"
    text = f"```console\n{commands}```\n"
    wanted = steps(text)
    outcomes = run([step.command for step in wanted], tmp_path, environment(tmp_path))
    assert [outcome.status for outcome in outcomes] == [0, 0, 1, 0]
    assert all(out.shows(step.shown) for step, out in zip(wanted, outcomes, strict=True))
    assert not outcomes[0].shows(("b",))
    assert not outcomes[1].shows(("one", "two"))


@cache
def generator() -> ModuleType:
    sys.path.append(str(ROOT / "scripts"))
    spec = importlib.util.spec_from_file_location("tpukit_docs", ROOT / "scripts" / "docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def calls(text: str) -> Iterator[str]:
    """Yield what stands after `tpukit` wherever a page shows a command."""
    code = [body for language, body in blocks(text) if language in ("console", "sh")]
    for body in [*code, *_SPAN.findall(re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M))]:
        for match in _CALL.finditer(re.sub(r"(^| +)# .*", "", body, flags=re.MULTILINE)):
            yield match[1].partition(" -- ")[0].strip()


@cache
def tree() -> Any:
    """Return the commands that there are."""
    return typer.main.get_command(application())


def understood(call: str) -> tuple[str | None, list[str]]:
    """Return the command that a call names, None where there is none, and the flags it lacks."""
    words = [word.strip("[]\"'") for word in shlex.split(call.replace("'", "").replace('"', ""))]
    group = tree()
    known = {name for param in group.params for name in param.opts} | {"--help"}
    values = {name for param in group.params if not param.is_flag for name in param.opts}
    path = ""
    skip = False
    for word in words:
        if skip or word.startswith("-"):
            skip = word in values and not skip
            continue
        if not hasattr(group, "commands"):
            break
        if word not in group.commands:
            if not getattr(group, "default", ""):
                return None, []
            word = group.default
        group, path = group.commands[word], f"{path} {word}"
        known |= {name for param in group.params for name in param.opts}
    return path, [word.partition("=")[0] for word in words if _is_flag(word, known)]


def _is_flag(word: str, known: set[str]) -> bool:
    return word.startswith("-") and word not in ("-", "--") and word.partition("=")[0] not in known

"""The program: registers one file a verb, and turns every error into its exit code."""

from __future__ import annotations

import errno
import os
import re
import resource
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import fields
from importlib import import_module
from itertools import zip_longest
from typing import Annotated, Any

import typer
from typer import Option
from typer.exceptions import TyperException

from tpukit import __version__, console
from tpukit.cli import signals
from tpukit.cli.global_flags import GlobalFlags, verb_index
from tpukit.cli.pages import GROUPS, SUMMARIES, VERBS, Command, Group
from tpukit.cli.verb import Invocation, ReaderGone, flat, parameters, verb
from tpukit.errors import (
    BadInput,
    Fix,
    NoCapacity,
    NotAuthenticated,
    NotFound,
    TpukitError,
    interruption,
)
from tpukit.paths import Paths, private_directory
from tpukit.text import one_line

Version = Annotated[bool, Option("--version", help="Print the version.")]
#: A verb is the function in the file of its name, or of these.
_FILES = {"list": "list_slices", "ssh-config": "ssh_config"}
#: More than a command on every worker of the largest slices needs; macOS allows 10,240.
_OPEN_FILES = 8192
#: The arguments with which a shell's completion script asks for candidates.
_COMPLETE = ["completion", "--words", "--"]
#: What Typer adds to an unknown word; it knows less than `meant_line`.
_THEIR_GUESS = re.compile(r"\. Did you mean '.*'\?| \(Possible options: .*\)")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command line and exit with its code."""
    signals.lose_none()
    try:
        code = status(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt as again:  # while an error was printed
        code = interruption(again).exit_code
    signals.ignore_interrupts()
    sys.exit(code)


def status(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    invocation = Invocation()
    try:
        signals.end_at_signals()
        _open_more_files()
        _refuse_empty_flags(arguments)
        return _run(arguments, invocation)
    except TyperException as error:
        return _fail(_usage(error, arguments), arguments, invocation)
    except BadInput as error:  # the cause may be a full disk, which is not the user's mistake
        return _fail(_disk_full(error.__cause__) or error, arguments, invocation)
    except TpukitError as error:
        return _fail(error, arguments, invocation)
    except KeyboardInterrupt as caught:
        return _fail(interruption(caught), arguments, invocation)
    except ReaderGone:  # like any filter, end if the reader of our output has ended
        _silence_stdout()
        return 141
    except Exception as error:  # noqa: BLE001  our defect: the traceback goes to a file
        known = _folder_gone(error) or _disk_full(error) or _unusable(error)
        return _fail(known or _defect(error), arguments, invocation)


def application(names: Iterable[str] = (*VERBS, *GROUPS)) -> typer.Typer:
    """Return the command tree, or the part of it with these verbs and groups."""
    app = _root_application()
    for name in names:
        file = _FILES.get(name, name)
        module = import_module(f"tpukit.cli.verbs.{file}")
        if name in GROUPS:
            app.add_typer(module.application(), name=name)
        else:
            app.command(name, cls=Command)(verb(getattr(module, file)))
    return app


def _table_of_contents() -> typer.Typer:
    """Return the commands and their summaries for the program's help page; none can be called."""
    app = _root_application()
    for name, summary in SUMMARIES.items():
        app.command(name, cls=Command, help=summary)(lambda: None)
    return app


def _root_application() -> typer.Typer:
    app = typer.Typer(
        name="tpukit",
        help="From nothing to a verified Cloud TPU in one command.",
        cls=Group,
        context_settings={"help_option_names": ["--help", "-h"]},
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    app.callback(invoke_without_command=True)(flat(_root, parameters(_root), _root))
    return app


def _root(context: typer.Context, *, version: Version = False, flags: GlobalFlags) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit
    context.obj.flags = flags
    if context.invoked_subcommand is None:
        raise BadInput("there is no command", fix=Fix.command("tpukit", "--help"))


def _application_for(arguments: Sequence[str]) -> typer.Typer:
    """Return the command tree with only the verb of these arguments: it starts twice as fast."""
    verb = _verb(arguments)
    return application([verb]) if verb else _table_of_contents()


def _verb(arguments: Sequence[str]) -> str:
    """Return the verb or group in the arguments, or "" if there is none."""
    word = next(iter(arguments[verb_index(arguments) :]), "")
    return word if word in (*VERBS, *GROUPS) else ""


def _run(arguments: list[str], invocation: Invocation) -> int:
    if arguments[: len(_COMPLETE)] == _COMPLETE:
        return _complete(arguments[len(_COMPLETE) :])
    if arguments[:1] == ["help"] and arguments[1:2] and arguments[1] in (*VERBS, *GROUPS):
        arguments = [*arguments[1:], "--help"]
    command = typer.main.get_command(_application_for(arguments))
    result = command.main(arguments or ["--help"], "tpukit", standalone_mode=False, obj=invocation)
    if sys.stdout:  # None if it was closed before the start
        sys.stdout.flush()
    return int(result or 0)


def _refuse_empty_flags(arguments: Sequence[str]) -> None:
    """Raise `BadInput` if a flag has an empty value, such as a script's unset variable."""
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    for word, after in zip_longest(ours, ours[1:]):
        flag, joined, value = word.partition("=")
        if flag.startswith("--") and (not value if joined else after == ""):
            shown = one_line(flag)
            raise BadInput(f"the value of {shown} is empty", fix=Fix(note=f"leave out {shown}"))


def _complete(words: list[str]) -> int:
    from tpukit.cli.verbs.completion import candidates

    root = typer.main.get_command(_application_for(words[:-1]))
    for word, meaning in candidates(root, words, _hinted_names):
        sys.stdout.write(f"{word}\t{meaning}\n")
    return 0


def _hinted_names() -> list[str]:
    """Return the names of slices that this machine has seen recently."""
    from tpukit.clock import SystemClock
    from tpukit.slices.name_hints import NameHints

    try:
        return NameHints(Paths.from_environment(os.environ).name_hints, SystemClock()).names()
    except TpukitError:  # there is no home folder
        return []


def _usage(error: TyperException, arguments: Sequence[str]) -> BadInput:
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    known = [word for word in arguments[:1] if word in (*VERBS, *GROUPS)]
    path = context.command_path.split() if context else ["tpukit", *known]
    return BadInput(message.rstrip("."), fix=Fix.command(*path, "--help"))


def _folder_gone(error: Exception) -> TpukitError | None:
    """Return an error if a file is missing because the working folder was deleted, else None."""
    from tpukit.cli.toolkit import working_folder

    try:
        working_folder()
    except BadInput as gone:
        return gone if isinstance(error, FileNotFoundError) else None
    return None


def _disk_full(error: BaseException | None) -> TpukitError | None:
    """Return an error if this machine's disk or quota is full, else None."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if not isinstance(error, OSError) or error.errno not in full:
        return None
    _silence_stdout()  # there is no room for the buffered output either
    return TpukitError(
        "this machine's disk has no room",
        reason=os.strerror(error.errno),
        why="earlier requests to the cloud may have succeeded",
        fix=Fix.command("tpukit", "list", note="shows what exists"),
    )


def _unusable(error: Exception) -> TpukitError | None:
    """Return an error if a file may not be used here, such as on a read-only disk, else None."""
    barred = (errno.EROFS, errno.EACCES, errno.EIO, errno.ELOOP, errno.ESTALE)
    if not isinstance(error, OSError) or error.errno not in barred or not error.filename:
        return None
    return TpukitError(
        f"cannot use {one_line(os.fsdecode(error.filename))}",
        reason=os.strerror(error.errno),
        fix=Fix(note="make it usable; TPUKIT_HOME=/full/path moves tpukit's own files elsewhere"),
    )


def _defect(error: Exception) -> TpukitError:
    """Write the traceback to a private file and return the error that names it."""
    import tempfile
    import traceback

    report = f"tpukit {__version__}\n{''.join(traceback.format_exception(error))}"
    try:
        directory = private_directory(Paths.from_environment(os.environ).state)
        descriptor, path = tempfile.mkstemp(
            prefix="crash-", suffix=".log", dir=directory, text=True
        )
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(report)
    except (OSError, TpukitError):
        path = ""
    return TpukitError(
        f"a defect in tpukit: {type(error).__name__}",
        why=one_line(str(error))[:300],
        fix=Fix(note=f"report it with {path}{_report_address()}") if path else None,
    )


def _report_address() -> str:
    """Return " at " and the first project URL of the installed package, or "" if it has none."""
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        urls = metadata("tpukit").get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    return f" at {urls[0].partition(',')[2].strip()}" if urls else ""


def _fail(error: TpukitError, arguments: list[str], invocation: Invocation) -> int:
    toolkit = invocation.toolkit
    shown = toolkit.console if toolkit else _plain_console(arguments)
    if isinstance(error, NoCapacity) and _verb(arguments) in ("create", "up"):
        from tpukit.cli.search_flags import offer_search

        offer_search(error, arguments)
    if isinstance(error, (BadInput, NotFound)):
        _suggest_meant_line(error, arguments)
    if isinstance(error, (BadInput, NotAuthenticated, NotFound)):
        for word in _misplaced(arguments):
            shown.warn(f"{word} after -- belongs to the remote command, not to tpukit")
    shown.fail(error)
    _drop_unwritable_output()
    return error.exit_code


def _suggest_meant_line(error: TpukitError, arguments: list[str]) -> None:
    """Let an error suggest the line that was meant, if the line that failed has a known mistake."""
    from tpukit.cli.meant_lines import meant_line

    meant = meant_line(arguments, _command_of, _hinted_names())
    if meant and isinstance(error, NotFound):
        error.otherwise = error.otherwise or meant
    elif meant:
        error.what = _THEIR_GUESS.sub("", error.what)
        is_help = error.fix is not None and error.fix.arguments[-1:] == ("--help",)
        error.fix, error.otherwise = meant, error.otherwise if is_help else error.fix


def _command_of(verb: str) -> Any:
    """Return Typer's command for a verb or a group."""
    root: Any = typer.main.get_command(application([verb]))
    return root.commands[verb]


def _misplaced(arguments: list[str]) -> list[str]:
    """Return the global flags after `--`, which are words of the remote command."""
    after = arguments[arguments.index("--") + 1 :] if "--" in arguments else []
    own = {f"--{field.name.replace('_', '-')}" for field in fields(GlobalFlags)} | {"-o"}
    return [word for word in dict.fromkeys(after) if word.partition("=")[0] in own]


def _plain_console(arguments: list[str]) -> console.Console:
    before = arguments[: arguments.index("--")] if "--" in arguments else arguments
    given = " ".join(before)
    as_json = re.search(r"(^| )(--json|(-o|--output)[ =]?json)( |$)", given) is not None
    return console.for_this_process(as_json=as_json)


def _open_more_files() -> None:
    """Raise the limit of open files if allowed: macOS gives 256, and a large slice needs more."""
    most, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if allowed == resource.RLIM_INFINITY else min(_OPEN_FILES, allowed)
    if most != resource.RLIM_INFINITY and most < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, allowed))


def _drop_unwritable_output() -> None:
    """Drop buffered output for which there is no room, or the interpreter fails when it exits."""
    try:
        if sys.stdout:
            sys.stdout.flush()
    except OSError:
        _silence_stdout()


def _silence_stdout() -> None:
    if sys.stdout:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

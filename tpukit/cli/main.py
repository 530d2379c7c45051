"""The program: registers one file a verb, and turns every error into its exit code."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from inspect import Parameter
from typing import Annotated

import typer
from typer.exceptions import TyperException

from tpukit import __version__, console
from tpukit.cli import (
    attach,
    config,
    cp,
    create,
    delete,
    describe,
    emulator,
    firewall,
    forward,
    jobs,
    kill,
    list_slices,
    logs,
    notebook,
    provision,
    push,
    run,
    smoke,
    ssh,
    ssh_config,
    start,
    stop,
    types,
    up,
    wait,
)
from tpukit.cli.verb import Invocation, ReaderGone, root, verb
from tpukit.errors import BadInput, TerminationSignal, TpukitError, interruption
from tpukit.paths import Paths, private_directory
from tpukit.text import one_line

_VERSION = Parameter(
    "version",
    Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[bool, typer.Option("--version", help="Print the version.")],
)
EPILOG = "Try it without an account: tpukit --local up v3-8"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command line and exit with its code."""
    sys.exit(status(list(sys.argv[1:] if arguments is None else arguments)))


def status(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    for name in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, _terminate)
    invocation = Invocation()
    try:
        return _run(arguments, invocation)
    except TyperException as error:
        return _fail(_usage(error), arguments, invocation)
    except TpukitError as error:
        return _fail(error, arguments, invocation)
    except KeyboardInterrupt as caught:
        return _fail(interruption(caught), arguments, invocation)
    except ReaderGone:  # the reader of our output has gone: so do we, as a filter does
        _silence_stdout()
        return 141
    except Exception as error:  # noqa: BLE001  a defect of ours: keep it, spare the reader
        return _fail(_defect(error), arguments, invocation)


def application() -> typer.Typer:
    """Return the command tree."""
    app = typer.Typer(
        name="tpukit",
        help="From nothing to a verified Cloud TPU in one command.",
        epilog=EPILOG,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    app.callback(invoke_without_command=True)(root(_VERSION, lambda: typer.echo(__version__)))
    for name, function in (
        ("up", up.up),
        ("create", create.create),
        ("list", list_slices.list_slices),
        ("describe", describe.describe),
        ("delete", delete.delete),
        ("start", start.start),
        ("stop", stop.stop),
        ("wait", wait.wait),
        ("ssh", ssh.ssh),
        ("forward", forward.forward),
        ("notebook", notebook.notebook),
        ("ssh-config", ssh_config.ssh_config),
        ("run", run.run),
        ("cp", cp.cp),
        ("push", push.push),
        ("jobs", jobs.jobs),
        ("logs", logs.logs),
        ("attach", attach.attach),
        ("kill", kill.kill),
        ("provision", provision.provision),
        ("smoke", smoke.smoke),
        ("types", types.types),
    ):
        app.command(name)(verb(function))
    app.add_typer(firewall.application(), name="firewall")
    app.add_typer(emulator.application(), name="emulator")
    app.add_typer(config.application(), name="config")
    return app


def _run(arguments: list[str], invocation: Invocation) -> int:
    command = typer.main.get_command(application())
    result = command.main(arguments or ["--help"], "tpukit", standalone_mode=False, obj=invocation)
    sys.stdout.flush()
    return int(result or 0)


def _usage(error: TyperException) -> BadInput:
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "tpukit"
    return BadInput(message.rstrip("."), fix=f"{path} --help")


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
        fix=f"report it with {path}" if path else "",
    )


def _fail(error: TpukitError, arguments: list[str], invocation: Invocation) -> int:
    toolkit = invocation.toolkit
    shown = toolkit.console if toolkit else _plain_console(arguments)
    shown.fail(error)
    return error.exit_code


def _plain_console(arguments: list[str]) -> console.Console:
    before = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return console.for_this_process(as_json="--json" in before, quiet=False, verbose=False)


def _terminate(number: int, frame: object) -> None:
    raise TerminationSignal


def _silence_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

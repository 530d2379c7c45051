"""Turns functions into commands that share the global flags, a toolkit, and the output."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from inspect import Parameter
from typing import TYPE_CHECKING, Any, get_type_hints

import typer

from tpukit.cli import signals
from tpukit.cli.global_flags import GlobalFlags
from tpukit.cli.pages import LEFT_OUT, Command, Group
from tpukit.cli.parameters import EXTERNAL, RouteFlags
from tpukit.cli.toolkit.sightings import Sightings
from tpukit.console import View
from tpukit.errors import Interrupted, TerminationSignal

if TYPE_CHECKING:
    from tpukit.cli.toolkit import Toolkit


@dataclass
class Invocation:
    """One run of the program: its global flags, and its toolkit once that is made."""

    flags: GlobalFlags = field(default_factory=GlobalFlags)
    toolkit: Toolkit | None = None


def group(summary: str, *functions: Callable[..., View], cls: type[Group] = Group) -> typer.Typer:
    """Return a group of commands, each named by its function's name up to an underscore."""
    app = typer.Typer(help=summary, cls=cls)
    for function in functions:
        app.command(function.__name__.partition("_")[0], cls=Command)(verb(function))
    return app


def verb(function: Callable[..., View]) -> Callable[..., None]:
    """Turn `function(toolkit, …)` into a Typer command that also takes the global flags.

    The command takes the flags of a route too if the function is `connecting`.
    """

    def command(
        context: typer.Context, after: GlobalFlags, route: RouteFlags = EXTERNAL, **values: Any
    ) -> None:
        from tpukit.cli.toolkit import Toolkit

        context.obj.flags = context.obj.flags.merge(after)
        context.obj.flags.check()
        context.obj.toolkit = toolkit = Toolkit(context.obj.flags, route)
        with _past_typer(toolkit.seen):
            with toolkit.closing:
                route.check()
                if values.get("name") == LEFT_OUT:
                    values["name"] = only_name(toolkit)
                result = function(toolkit, **values)
                if result.status == Interrupted.exit_code:
                    signals.ignore_interrupts()
            toolkit.console.emit(result)
        raise typer.Exit(result.status)

    context, after, route, _ = parameters(command)
    shared = [route, after] if "connects" in vars(function) else [after]
    return flat(command, [context, *parameters(function)[1:], *shared], function)


def only_name(toolkit: Toolkit) -> str:
    """Return the name of the user's only slice, and say which one it is."""
    slice_ = toolkit.slices.only()
    toolkit.console.say(f"slice {slice_.name} in {slice_.zone}, your only one")
    return slice_.name


class ReaderGone(Exception):
    """The reader of our output has closed the pipe."""


@contextmanager
def _past_typer(seen: Sightings) -> Iterator[None]:
    """Replace exceptions that Typer would silently turn into exit statuses by our own."""
    try:
        yield
    except KeyboardInterrupt as signal:
        signals.ignore_interrupts()
        raise seen.interrupted(signal) from None
    except BrokenPipeError as error:
        raise ReaderGone from error


@contextmanager
def ended_by_interrupt() -> Iterator[Callable[[], int]]:
    """Treat Ctrl-C as the normal end of the block; yield a function that returns the status."""
    ended: list[bool] = []
    try:
        yield lambda: Interrupted.exit_code if ended else 0
    except TerminationSignal:
        raise
    except KeyboardInterrupt:
        ended.append(True)


def flat(
    function: Callable[..., None], taken: Iterable[Parameter], like: Callable[..., Any]
) -> Callable[..., None]:
    """Return a function for Typer that has one parameter for each flag of a dataclass of flags.

    Its name and docstring are those of `like`.
    """
    # Typer reads the flags from the signature and cannot share flags between commands. Without
    # this signature, each verb would have to repeat the global flags.
    groups = {
        parameter.name: parameter.annotation
        for parameter in taken
        if is_dataclass(parameter.annotation)
    }

    def command(**values: Any) -> None:
        for name, flags in groups.items():
            values[name] = flags(**{field.name: values.pop(field.name) for field in fields(flags)})  # type: ignore[operator]
        function(**values)

    flags = [
        flag.replace(kind=Parameter.KEYWORD_ONLY)
        for parameter in taken
        for flag in (_flags(parameter.annotation) if parameter.name in groups else [parameter])
    ]
    command.__signature__ = inspect.Signature(flags)  # type: ignore[attr-defined]
    command.__annotations__ = {flag.name: flag.annotation for flag in flags}
    command.__name__ = like.__name__
    # A line of \b tells click not to rewrap the paragraph below it.
    command.__doc__ = re.sub(r"\n( +)(Examples?:)", "\n\\1\b\n\\1\\2", like.__doc__ or "")
    return command


def parameters(function: Callable[..., Any]) -> list[Parameter]:
    """Return the parameters of a function."""
    return list(inspect.signature(function, eval_str=True).parameters.values())


def _flags(group: Any) -> list[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        Parameter(
            field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in fields(group)
    ]

"""What every command shares: the global flags, one toolkit, one way to show a result."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from inspect import Parameter
from typing import TYPE_CHECKING, Any, get_type_hints

import typer

from tpukit.cli.global_flags import GlobalFlags
from tpukit.cli.pages import Command, Group
from tpukit.console import View
from tpukit.errors import Interrupted, TerminationSignal

if TYPE_CHECKING:
    from tpukit.cli.toolkit import Toolkit


@dataclass
class Invocation:
    """One run of the program: the flags before the verb, and the toolkit once it is made."""

    flags: GlobalFlags = field(default_factory=GlobalFlags)
    toolkit: Toolkit | None = None


def group(summary: str, *functions: Callable[..., View], cls: type[Group] = Group) -> typer.Typer:
    """Return a group of commands, each called like its function's name up to an underscore."""
    app = typer.Typer(help=summary, cls=cls)
    for function in functions:
        app.command(function.__name__.partition("_")[0], cls=Command)(verb(function))
    return app


def verb(function: Callable[..., View]) -> Callable[..., None]:
    """Turn `function(toolkit, …)` into a Typer command that also takes the global flags."""

    def command(context: typer.Context, after: GlobalFlags, **values: Any) -> None:
        from tpukit.cli.toolkit import Toolkit

        context.obj.flags = context.obj.flags.merge(after)
        context.obj.toolkit = toolkit = Toolkit(context.obj.flags)
        with _past_typer(toolkit):
            with toolkit.closing:
                result = function(toolkit, **values)
            toolkit.console.emit(result)
        raise typer.Exit(result.status)

    context, after, _ = parameters(command)
    return flat(command, [context, *parameters(function)[1:], after], function)


class ReaderGone(Exception):
    """Whoever read our output has closed it."""


@contextmanager
def _past_typer(toolkit: Toolkit) -> Iterator[None]:
    """Carry past Typer what it would turn into exit statuses of its own, without a word."""
    try:
        yield
    except KeyboardInterrupt as signal:
        raise toolkit.interrupted(signal) from None
    except BrokenPipeError as error:
        raise ReaderGone from error


@contextmanager
def ended_by_interrupt() -> Iterator[Callable[[], int]]:
    """Run what only Ctrl-C ends, which is no error then; yield what returns its exit status."""
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
    """Return a function for Typer, in which a dataclass of flags is one parameter a flag.

    `like` gives it its name and its docstring.
    """
    # Typer knows a command's flags from its signature alone, and has nothing for flags that several
    # commands share: without a signature made here, each verb would repeat the global flags.
    groups = {each.name: each.annotation for each in taken if is_dataclass(each.annotation)}

    def command(**values: Any) -> None:
        for name, flags in groups.items():
            values[name] = flags(**{each.name: values.pop(each.name) for each in fields(flags)})  # type: ignore[operator]
        function(**values)

    flags = [
        flag.replace(kind=Parameter.KEYWORD_ONLY)
        for each in taken
        for flag in (_flags(each.annotation) if each.name in groups else [each])
    ]
    command.__signature__ = inspect.Signature(flags)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in flags}
    command.__name__ = like.__name__
    # A line of \b keeps the lines of the paragraph below it apart in the help page.
    command.__doc__ = re.sub(r"\n( +)(Examples?:)", "\n\\1\b\n\\1\\2", like.__doc__ or "")
    return command


def parameters(function: Callable[..., Any]) -> list[Parameter]:
    """Return what a function takes."""
    return list(inspect.signature(function, eval_str=True).parameters.values())


def _flags(group: Any) -> list[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        Parameter(
            each.name, Parameter.KEYWORD_ONLY, default=each.default, annotation=hints[each.name]
        )
        for each in fields(group)
    ]

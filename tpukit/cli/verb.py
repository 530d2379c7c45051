"""What every command shares: the global flags, one toolkit, one way to show a result."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from inspect import Parameter
from typing import Any, get_type_hints

import typer

from tpukit.cli.hints import Hints
from tpukit.cli.toolkit import Flags, Toolkit
from tpukit.console import View
from tpukit.errors import BadInput, interruption


@dataclass
class Invocation:
    """One run of the program: what the root callback heard, and the toolkit once it is made."""

    flags: Flags = field(default_factory=Flags)
    toolkit: Toolkit | None = None


def verb(function: Callable[..., View]) -> Callable[..., None]:
    """Turn `function(toolkit, …)` into a Typer command that also takes the global flags.

    A parameter whose type is a dataclass stands for one flag a field.
    """
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

    def command(context: typer.Context, **values: Any) -> None:
        context.obj.flags = merge(context.obj.flags, _gather(Flags, values))
        context.obj.toolkit = toolkit = Toolkit(context.obj.flags)
        groups = {each.name: _gather(each.annotation, values) for each in own if _is_group(each)}
        hints = Hints.of(toolkit.flags, toolkit.environ)
        with _past_typer(), hints.in_errors():
            result = function(toolkit, **values, **groups)
            toolkit.console.emit(hints.view(result))
        raise typer.Exit(result.status)

    flat = [
        flag for each in own for flag in (_flags(each.annotation) if _is_group(each) else [each])
    ]
    return signed(command, [*flat, *_flags(Flags)], function)


class ReaderGone(Exception):
    """Whoever read our output has closed it."""


@contextmanager
def _past_typer() -> Iterator[None]:
    """Carry past Typer what it would turn into exit statuses of its own, without a word."""
    try:
        yield
    except KeyboardInterrupt as signal:
        raise interruption(signal) from None
    except BrokenPipeError as error:
        raise ReaderGone from error


def signed(
    command: Callable[..., None], parameters: Iterable[Parameter], like: Callable[..., Any]
) -> Callable[..., None]:
    """Give a command the signature that Typer reads, and the name and docstring of `like`."""
    context = Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)
    named = [context, *(each.replace(kind=Parameter.KEYWORD_ONLY) for each in parameters)]
    command.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in named}
    command.__name__ = like.__name__
    # A line of \b keeps the lines of the paragraph below it apart in the help page.
    command.__doc__ = re.sub(r"\n( +)(Examples?:)", "\n\\1\b\n\\1\\2", like.__doc__ or "")
    return command


def root(version: Parameter, show_version: Callable[[], None]) -> Callable[..., None]:
    """Return the root callback: it hears the global flags that stand before the verb."""

    def tpukit(context: typer.Context, **values: Any) -> None:
        if values.pop(version.name):
            show_version()
            raise typer.Exit
        context.obj.flags = _gather(Flags, values)
        if context.invoked_subcommand is None:
            raise BadInput("there is no command", fix="tpukit --help")

    return signed(tpukit, [version, *_flags(Flags)], tpukit)


def merge(before: Flags, after: Flags) -> Flags:
    """Return both sets of flags as one: a global flag means the same before and after the verb."""
    given = {each.name: getattr(after, each.name) for each in fields(after)}
    return replace(before, **{name: value for name, value in given.items() if value})


def _is_group(parameter: Parameter) -> bool:
    return is_dataclass(parameter.annotation)


def _gather(group: Any, values: dict[str, Any]) -> Any:
    """Take the fields of a dataclass of flags out of `values`."""
    return group(**{each.name: values.pop(each.name) for each in fields(group)})


def _flags(group: Any) -> list[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        Parameter(
            each.name, Parameter.KEYWORD_ONLY, default=each.default, annotation=hints[each.name]
        )
        for each in fields(group)
    ]

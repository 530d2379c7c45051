"""A provider for a process that is ended at one of its calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import current_thread, main_thread
from typing import Any


class Killed(BaseException):
    """The end of a process that nothing of it survives."""


@dataclass
class Mortal:
    """The cloud's provider for a process that is killed at its call with a number.

    It dies before the call, or after the cloud has carried it out; 0 is never. `signal` can be
    Ctrl-C instead. `calls` counts the calls by their names, and "all".
    """

    provider: Any
    number: int
    answered: bool
    signal: type[BaseException] = Killed
    calls: Counter[str] = field(default_factory=Counter)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.provider, name)
        if name in ("once", "within", "only"):
            return lambda *words, **given: Mortal(
                value(*words, **given), self.number, self.answered, self.signal, self.calls
            )
        return self._mortal(name, value) if callable(value) and name != "now" else value

    def _mortal(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def act(*words: Any, **given: Any) -> Any:
            if current_thread() is not main_thread():  # which a signal never reaches
                return call(*words, **given)
            self.calls.update([name, "all"])
            last = self.calls["all"] == self.number
            if last and not self.answered:
                raise self.signal
            try:
                return call(*words, **given)
            finally:
                if last:
                    raise self.signal

        return act

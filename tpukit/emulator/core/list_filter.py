"""`filter` (AIP-160) and `orderBy` (AIP-132) of list methods, applied to JSON documents.

Compute Engine adds `eq` and `ne`, which take regular expressions: see `filter` in its API
reference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tpukit.emulator.core.api_errors import Json, invalid

Test = Callable[[Json], bool]

_TOKEN = re.compile(r"""\s*([()]|<=|>=|!=|[=:<>]|"[^"]*"|'[^']*'|[^\s()=:<>!"']+)""")
_TESTS = ("=", "!=", ":", "<", ">", "<=", ">=", "eq", "ne")
_ORDER = re.compile(r"\s*([\w.]+)(?:\s+(asc|desc))?\s*")


def filtered(documents: Mapping[str, Json], text: str) -> Iterator[str]:
    """Yield the names of the documents that match a list filter; raise `ApiError` if it is bad."""
    if not text.strip():
        return iter(documents)
    test, _ = _parsed(text)
    return (name for name in documents if test(documents[name]))


def filter_fields(text: str) -> Sequence[str]:
    """Return the paths of the fields that a list filter names; raise `ApiError` if it is bad."""
    return _parsed(text)[1] if text.strip() else ()


def order_fields(text: str) -> Sequence[str]:
    """Return the paths of the fields that an `orderBy` names; raise `ApiError` if it is bad."""
    return [path for path, _ in _order(text)]


def ordered(documents: Mapping[str, Json], names: Iterable[str], text: str) -> list[str]:
    """Return names sorted by their documents' fields ("type desc, name"), then by name."""
    result = sorted(names)
    for path, backward in reversed(_order(text)):
        fields = path.split(".")
        result.sort(key=lambda name: _texts(documents[name], fields), reverse=backward)
    return result


def _order(text: str) -> list[tuple[str, bool]]:
    """Return each field's path in an `orderBy`, with True if it descends."""
    orders = []
    for part in text.split(",") if text.strip() else []:
        match = _ORDER.fullmatch(part)
        if match is None:
            raise invalid(f"Invalid value for field 'orderBy': '{text}'.")
        orders.append((match[1], match[2] == "desc"))
    return orders


def _parsed(text: str) -> tuple[Test, Sequence[str]]:
    """Return a filter as a test of documents, and the fields that it names."""
    try:
        parser = _Parser(text)
        return parser.parse(), parser.fields
    except (ValueError, re.error, RecursionError) as error:
        message = f"Invalid value for field 'filter': '{text}'. Invalid list filter expression."
        raise invalid(message) from error


class _Parser:
    """A parser of terms joined by AND or a blank; OR binds closer, NOT and - closest."""

    def __init__(self, text: str) -> None:
        self.fields: list[str] = []  #: the paths of the fields that were parsed so far
        self._words: list[str] = []
        text, place = text.strip(), 0
        while place < len(text):
            token = _TOKEN.match(text, place)
            if token is None:
                raise ValueError(text[place:])
            self._words.append(token[1])
            place = token.end()

    def parse(self) -> Test:
        test = self._all()
        if self._words:
            raise ValueError(self._words[0])
        return test

    def _all(self) -> Test:
        tests = [self._any()]
        while self._words and self._words[0] != ")":
            self._skip("AND")
            tests.append(self._any())
        return lambda document: all(test(document) for test in tests)

    def _any(self) -> Test:
        tests = [self._one()]
        while self._skip("OR"):
            tests.append(self._one())
        return lambda document: any(test(document) for test in tests)

    def _one(self) -> Test:
        if self._skip("NOT"):
            inner = self._one()
            return lambda document: not inner(document)
        if self._skip("("):
            inner = self._all()
            if not self._skip(")"):
                raise ValueError("a parenthesis is open")
            return inner
        return self._comparison(*(self._next() for _ in range(3)))

    def _comparison(self, name: str, test: str, value: str) -> Test:
        if test not in _TESTS or not re.fullmatch(r"-?[\w.-]+", name) or value in "()":
            raise ValueError(name)
        self.fields.append(name.removeprefix("-"))
        wanted, fields = value.strip("\"'"), self.fields[-1].split(".")
        compare = _comparison(test, wanted)
        negative = name.startswith("-") or test in ("!=", "ne")
        return lambda document: any(map(compare, _texts(document, fields))) != negative

    def _next(self) -> str:
        if not self._words:
            raise ValueError("the filter ends too early")
        return self._words.pop(0)

    def _skip(self, word: str) -> bool:
        matches = bool(self._words) and self._words[0] == word
        if matches:
            self._words.pop(0)
        return matches


def _comparison(test: str, wanted: str) -> Callable[[str], bool]:
    if test in ("eq", "ne"):
        pattern = re.compile(wanted)
        return lambda text: pattern.fullmatch(text) is not None
    if test == ":":
        return lambda text: wanted in ("*", "") or wanted in text
    if test in ("=", "!="):
        return lambda text: text == wanted
    return lambda text: _is_between(text, test, wanted)


def _is_between(text: str, test: str, wanted: str) -> bool:
    try:
        pair: tuple[Any, Any] = float(text), float(wanted)
    except ValueError:
        pair = text, wanted
    if pair[0] == pair[1]:
        return test.endswith("=")
    return bool(pair[0] < pair[1]) == test.startswith("<")


def _texts(value: Any, fields: list[str]) -> list[str]:
    """Return the values at a path of fields as text; search every entry of a list."""
    if isinstance(value, list):
        return [text for entry in value for text in _texts(entry, fields)]
    if not fields:
        return [str(value).lower() if isinstance(value, bool) else str(value)]
    if not isinstance(value, dict) or fields[0] not in value:
        return []
    return _texts(value[fields[0]], fields[1:])

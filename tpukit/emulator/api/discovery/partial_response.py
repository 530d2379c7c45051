"""What of an answer a client wants: the query parameter `fields` of Google's APIs.

Google API client documentation, "Performance: partial response": names with commas between, paths
with slashes, the fields of a part in parentheses, and `*` for every name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from tpukit.emulator.core.api_errors import ApiError, Json, invalid

#: By name, what of a part is wanted; nothing named is all of it.
Selection = dict[str, Any]

_TOKEN = re.compile(r"[\w@-]+|[*(),/.]|\S")


def parse_selection(text: str) -> Selection:
    """Return what is selected; raise `ApiError` for text that is no selection."""
    tokens = iter([*_TOKEN.findall(text), ""])
    try:
        found, last = _list(tokens, text)
    except RecursionError:
        raise invalid("Invalid field selection: too deep") from None
    if last:
        raise _invalid(text)
    return found


def check_selection(selection: Selection, schema: Json, schemas: Json) -> None:
    """Raise `ApiError` for a name that a message of this schema does not have."""
    while "$ref" in schema or "items" in schema:
        schema = schemas[schema["$ref"]] if "$ref" in schema else schema["items"]
    own = schema.get("properties")
    for name, inner in selection.items():
        if name == "*":
            parts = list((own or {}).values())
        elif own is None:  # a map, or any message: its names are not the schema's
            parts = []
        elif name in own:
            parts = [own[name]]
        else:
            raise _invalid(name)
        for part in parts if inner else ():
            check_selection(inner, part, schemas)


def select(selection: Selection, value: Any) -> Any:
    """Return what of a JSON value is selected."""
    if not selection:
        return value
    if isinstance(value, list):
        return [select(selection, each) for each in value]
    if not isinstance(value, dict):
        return value
    wanted = {name: [selection[key] for key in (name, "*") if key in selection] for name in value}
    return {name: select(_union(found), value[name]) for name, found in wanted.items() if found}


def _list(tokens: Iterator[str], text: str) -> tuple[Selection, str]:
    """Read names until a parenthesis or the end; return them and what ended them."""
    found: list[Selection] = []
    while True:
        names, last = [], "/"
        while last in ("/", "."):
            names.append(next(tokens))
            if not re.fullmatch(r"[\w@-]+|\*", names[-1]):
                raise _invalid(text)
            last = next(tokens)
        part: Selection = {}
        if last == "(":
            part, last = _list(tokens, text)
            if last != ")":
                raise _invalid(text)
            last = next(tokens)
        for name in reversed(names):
            part = {name: part}
        found.append(part)
        if last != ",":
            return _union(found), last


def _union(selections: Sequence[Selection]) -> Selection:
    """Return what is in any of some selections of one part; all of it where one says no names.

    google.protobuf.FieldMask: a path covers those that go on from it.
    """
    if not all(selections):
        return {}
    by_name: dict[str, list[Selection]] = {}
    for each in selections:
        for name, inner in each.items():
            by_name.setdefault(name, []).append(inner)
    return {name: _union(inner) for name, inner in by_name.items()}


def _invalid(what: str) -> ApiError:
    # The words: googleapis/google-api-dotnet-client#1444.
    return invalid(f"Invalid field selection {what}")

"""Partial responses: the query parameter `fields` of Google's APIs.

Google API client documentation, "Performance: partial response": names separated by commas, paths
with slashes, the fields of a part in parentheses, and `*` for every name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from tpukit.emulator.core.api_errors import ApiError, Json, invalid

#: The selected fields by name, each with its own selection; an empty selection selects everything.
Selection = dict[str, Any]

_TOKEN = re.compile(r"[\w@-]+|[*(),/.]|\S")


def parse_selection(text: str) -> Selection:
    """Return the selection that a text describes; raise `ApiError` if the text is malformed."""
    tokens = iter([*_TOKEN.findall(text), ""])
    try:
        selection, last = _list(tokens, text)
    except RecursionError:
        raise invalid("Invalid field selection: too deep") from None
    if last:
        raise _invalid(text)
    return selection


def check_selection(selection: Selection, schema: Json, schemas: Json) -> None:
    """Raise `ApiError` if a selection names a field that the schema does not have."""
    while "$ref" in schema or "items" in schema:
        schema = schemas[schema["$ref"]] if "$ref" in schema else schema["items"]
    own = schema.get("properties")
    for name, inner in selection.items():
        if name == "*":
            parts = list((own or {}).values())
        elif own is None:  # a map or any message: the schema does not list its names
            parts = []
        elif name in own:
            parts = [own[name]]
        else:
            raise _invalid(name)
        for part in parts if inner else ():
            check_selection(inner, part, schemas)


def select(selection: Selection, value: Any) -> Any:
    """Return the selected part of a JSON value."""
    if not selection:
        return value
    if isinstance(value, list):
        return [select(selection, item) for item in value]
    if not isinstance(value, dict):
        return value
    wanted = {name: [selection[key] for key in (name, "*") if key in selection] for name in value}
    return {name: select(_union(parts), value[name]) for name, parts in wanted.items() if parts}


def _list(tokens: Iterator[str], text: str) -> tuple[Selection, str]:
    """Read names until a parenthesis or the end; return their selection and the last token."""
    selections: list[Selection] = []
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
        selections.append(part)
        if last != ",":
            return _union(selections), last


def _union(selections: Sequence[Selection]) -> Selection:
    """Return the union of selections; it is empty, and so selects everything, if one is empty.

    google.protobuf.FieldMask: a path covers the longer paths that begin with it.
    """
    if not all(selections):
        return {}
    by_name: dict[str, list[Selection]] = {}
    for selection in selections:
        for name, inner in selection.items():
            by_name.setdefault(name, []).append(inner)
    return {name: _union(inner) for name, inner in by_name.items()}


def _invalid(text: str) -> ApiError:
    # Source of the message: googleapis/google-api-dotnet-client#1444.
    return invalid(f"Invalid field selection {text}")

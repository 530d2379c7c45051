"""A request and a reply as values, between the sockets and the answers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from tpukit.emulator.errors import Json, Status, encode, invalid

JSON_TYPE = "application/json; charset=UTF-8"


@dataclass(frozen=True)
class Request:
    """One HTTP request, read whole; `target` is path and query as they came."""

    verb: str
    target: str
    body: bytes = b""
    authorization: str = ""
    content_type: str = ""

    @property
    def path(self) -> str:
        """The path without its host, and without the doubled slashes of some base addresses."""
        path = urlsplit(self.target).path if "://" in self.target else self.target.split("?")[0]
        return "/" + path.lstrip("/")

    @property
    def query(self) -> dict[str, str]:
        _, _, text = self.target.partition("?")
        return dict(parse_qsl(text, keep_blank_values=True))

    def document(self) -> Json:
        """Return the JSON object of the body; an empty body is an empty object."""
        if not self.body.strip():
            return {}
        try:
            document = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise invalid(f"Invalid JSON payload received. {error}") from error
        if not isinstance(document, dict):
            raise invalid("Invalid JSON payload received. Root element must be a message.")
        return document


@dataclass(frozen=True)
class Reply:
    """One HTTP reply. `cut` is "reset" (nothing is sent) or "truncate" (half of it)."""

    status: int
    body: bytes
    content_type: str = JSON_TYPE
    cut: str = ""

    @classmethod
    def of(cls, document: Json) -> Reply:
        return cls(200, encode(document))

    @classmethod
    def error(cls, status: Status, compute: bool) -> Reply:
        body = status.compute_body() if compute else status.body()
        return cls(status.http_code, encode(body))


def unknown_path(request: Request) -> Reply:
    """Answer a method that does not exist: a page, as Google's front end does, not an API error.

    So "no such method" cannot be taken for "no such resource".
    """
    text = f"The emulator does not serve {request.verb} {request.path}"
    shown = text.replace("&", "&amp;").replace("<", "&lt;")
    page = f"<!DOCTYPE html>\n<html lang=en>\n<title>Error 404 (Not Found)</title>\n<p>{shown}\n"
    return Reply(404, page.encode("utf-8", "replace"), "text/html; charset=UTF-8")

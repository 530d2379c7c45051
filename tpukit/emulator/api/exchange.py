"""HTTP requests and replies as values, one by one or several in a multipart batch."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from email.message import Message
from email.parser import BytesParser, Parser
from http.client import responses
from urllib.parse import parse_qsl, urlsplit
from uuid import uuid4

from tpukit.emulator.core.api_errors import Json, Status, encode, invalid

JSON_TYPE = "application/json; charset=UTF-8"
#: The multipart batch endpoint of Compute Engine.
BATCH_PATH = "/batch/compute/v1"
#: The names under which clients look for what is served here.
GOOGLE_NAMES = tuple(
    f"{service}.googleapis.com"
    for service in (
        *("tpu", "compute", "oslogin", "serviceusage", "cloudresourcemanager"),
        *("iam", "oauth2", "www"),
    )
)
#: Where links to resources of Compute Engine lead, whichever name it was asked by.
_LINKS = "https://www.googleapis.com/"
#: What a POST may stand for.
_OVERRIDING = ("GET", "PUT", "PATCH", "DELETE")
#: Cloud documentation, "Batch requests": at most 1,000 calls.
_MOST_IN_BATCH = 1000


@dataclass(frozen=True)
class ApiRequest:
    """One HTTP request, read whole; `target` is path and query as they came."""

    verb: str
    target: str
    body: bytes = b""
    authorization: str = ""
    content_type: str = ""
    host: str = ""  #: as its header has it, with the port
    any_version: bool = False  #: gRPC's operations have one name in all versions of the API

    @property
    def has_google_name(self) -> bool:
        """Whether the client asks by the real name of the host."""
        return self.host.partition(":")[0].lower() in GOOGLE_NAMES

    @property
    def path(self) -> str:
        """The path without its host, and without the doubled slashes of some base addresses."""
        path = urlsplit(self.target).path if "://" in self.target else self.target.split("?")[0]
        return "/" + path.lstrip("/")

    @property
    def query(self) -> dict[str, str]:
        _, _, text = self.target.partition("?")
        return dict(parse_qsl(text, keep_blank_values=True))

    def overridden(self, verb: str) -> ApiRequest:
        """Return what a POST stands for whose X-HTTP-Method-Override names another verb.

        Google's clients send so a GET whose address is too long, its query as a form in the body.
        """
        if self.verb != "POST" or verb.upper() not in _OVERRIDING:
            return self
        if not self.content_type.startswith("application/x-www-form-urlencoded"):
            return replace(self, verb=verb.upper())
        query = self.body.decode("ascii", "replace")
        return replace(self, verb=verb.upper(), target=f"{self.target}?{query}", body=b"")

    def document(self) -> Json:
        """Return the JSON object of the body; an empty body is an empty object."""
        if not self.body.strip():
            return {}
        try:
            document = json.loads(self.body, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise invalid(f"Invalid JSON payload received. {error}") from error
        if not isinstance(document, dict):
            raise invalid("Invalid JSON payload received. Root element must be a message.")
        return document


@dataclass(frozen=True)
class ApiReply:
    """One HTTP reply. `cut` is "reset" (nothing is sent) or "truncate" (half of it)."""

    status: int
    body: bytes
    content_type: str = JSON_TYPE
    cut: str = ""

    @classmethod
    def of(cls, document: Json) -> ApiReply:
        return cls(200, encode(document))

    def with_links_of_google(self, base: str) -> ApiReply:
        """Return the reply for a client that knows no other address than Google's."""
        return replace(self, body=self.body.replace(base.encode(), _LINKS.encode()))

    @classmethod
    def error(cls, status: Status, compute: bool) -> ApiReply:
        body = status.compute_body() if compute else status.body()
        return cls(status.http_code, encode(body))


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no JSON.")


def unknown_path(request: ApiRequest) -> ApiReply:
    """Answer a method that does not exist: a page, as Google's front end does, not an API error.

    So "no such method" cannot be taken for "no such resource".
    """
    text = f"The emulator does not serve {request.verb} {request.path}"
    shown = text.replace("&", "&amp;").replace("<", "&lt;")
    page = f"<!DOCTYPE html>\n<html lang=en>\n<title>Error 404 (Not Found)</title>\n<p>{shown}\n"
    return ApiReply(404, page.encode("utf-8", "replace"), "text/html; charset=UTF-8")


def answer_batch(request: ApiRequest, answer: Callable[[ApiRequest], ApiReply]) -> ApiReply:
    """Answer every part of a multipart request in its order, in one multipart reply.

    A part that an injected fault cuts off cuts off the whole reply.
    """
    header = f"Content-Type: {request.content_type}\r\n\r\n".encode("latin-1", "replace")
    parsed = BytesParser().parsebytes(header + request.body)
    parts = parsed.get_payload()
    if not parsed.is_multipart() or not isinstance(parts, list) or len(parts) > _MOST_IN_BATCH:
        raise invalid(f"A batch is a multipart/mixed body of at most {_MOST_IN_BATCH} requests.")
    boundary = f"batch_{uuid4().hex}"
    chunks: list[str] = []
    for part in parts:
        if not isinstance(part, Message):
            raise invalid("A part of a batch must be an application/http message.")
        reply = answer(_inner(part, request))
        if reply.cut:
            return reply
        chunks.append(f"--{boundary}\r\n{_outer(part, reply)}")
    body = "".join(chunks) + f"--{boundary}--\r\n"
    return ApiReply(200, body.encode(), f"multipart/mixed; boundary={boundary}")


def _inner(part: Message, outer: ApiRequest) -> ApiRequest:
    text = str(part.get_payload(decode=False))
    line, _, rest = text.lstrip().partition("\n")
    verb, _, target = line.strip().removesuffix("HTTP/1.1").strip().partition(" ")
    message = Parser().parsestr(rest)
    body = str(message.get_payload(decode=False)).encode()
    kind = message.get_content_type()
    return ApiRequest(verb, target.strip(), body, outer.authorization, kind, outer.host)


def _outer(part: Message, reply: ApiReply) -> str:
    identifier = part.get("Content-ID", "<+0>").strip()
    body = reply.body.decode()
    return (
        "Content-Type: application/http\r\n"
        f"Content-ID: <response-{identifier.removeprefix('<')}\r\n\r\n"
        f"HTTP/1.1 {reply.status} {responses.get(reply.status, 'Unknown')}\r\n"
        f"Content-Type: {reply.content_type}\r\n"
        f"Content-Length: {len(reply.body)}\r\n\r\n"
        f"{body}\r\n"
    )

"""HTTP requests and replies as values, single or in a multipart batch."""

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
#: Google's host names of the services that the emulator serves.
GOOGLE_NAMES = tuple(
    f"{service}.googleapis.com"
    for service in (
        *("tpu", "compute", "oslogin", "serviceusage", "cloudresourcemanager"),
        *("cloudquotas", "iam", "oauth2", "www"),
    )
)
#: The start of links to Compute Engine resources, whatever host name the request used.
_LINKS = "https://www.googleapis.com/"
#: The verbs that X-HTTP-Method-Override may give to a POST.
_OVERRIDING = ("GET", "PUT", "PATCH", "DELETE")
#: Cloud documentation, "Batch requests": at most 1,000 calls.
_MOST_IN_BATCH = 1000


@dataclass(frozen=True)
class ApiRequest:
    """One complete HTTP request; `target` is its path and query, unchanged."""

    verb: str
    target: str
    body: bytes = b""
    authorization: str = ""
    content_type: str = ""
    host: str = ""  #: the Host header, with the port
    any_version: bool = False  #: in gRPC, operations have one name in all API versions

    @property
    def has_google_name(self) -> bool:
        """True if the client used one of Google's host names."""
        return self.host.partition(":")[0].lower() in GOOGLE_NAMES

    @property
    def path(self) -> str:
        """The path without a host, and without doubled slashes at its start."""
        path = urlsplit(self.target).path if "://" in self.target else self.target.split("?")[0]
        return "/" + path.lstrip("/")

    @property
    def query(self) -> dict[str, str]:
        _, _, text = self.target.partition("?")
        return dict(parse_qsl(text, keep_blank_values=True))

    def overridden(self, verb: str) -> ApiRequest:
        """Return the request that a POST stands for if X-HTTP-Method-Override is `verb`.

        Google's clients send a GET in this way if its URL is too long, with the query in the body.
        """
        if self.verb != "POST" or verb.upper() not in _OVERRIDING:
            return self
        if not self.content_type.startswith("application/x-www-form-urlencoded"):
            return replace(self, verb=verb.upper())
        query = self.body.decode("ascii", "replace")
        return replace(self, verb=verb.upper(), target=f"{self.target}?{query}", body=b"")

    def document(self) -> Json:
        """Return the body as a JSON object; raise `ApiError` if it is not one. Empty means {}."""
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
    """One HTTP reply. If `cut` is "reset", send nothing; if "truncate", half of the body."""

    status: int
    body: bytes
    content_type: str = JSON_TYPE
    cut: str = ""

    @classmethod
    def of(cls, document: Json) -> ApiReply:
        return cls(200, encode(document))

    def with_links_of_google(self, base: str) -> ApiReply:
        """Return the reply with links to Google's address in place of `base`."""
        return replace(self, body=self.body.replace(base.encode(), _LINKS.encode()))

    @classmethod
    def error(cls, status: Status, compute: bool) -> ApiReply:
        body = status.compute_body() if compute else status.body()
        return cls(status.http_code, encode(body))


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not JSON.")


def unknown_path(request: ApiRequest) -> ApiReply:
    """Return the reply for an unknown method: like Google's front end, a page, not an API error.

    A client thus cannot mistake "no such method" for "no such resource".
    """
    text = f"The emulator does not serve {request.verb} {request.path}"
    shown = text.replace("&", "&amp;").replace("<", "&lt;")
    page = f"<!DOCTYPE html>\n<html lang=en>\n<title>Error 404 (Not Found)</title>\n<p>{shown}\n"
    return ApiReply(404, page.encode("utf-8", "replace"), "text/html; charset=UTF-8")


def answer_batch(request: ApiRequest, answer: Callable[[ApiRequest], ApiReply]) -> ApiReply:
    """Answer every part of a multipart request in order, in one multipart reply.

    If an injected fault cuts off one part, it cuts off the whole reply.
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

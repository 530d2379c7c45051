"""The multipart batch endpoint of Compute Engine: several requests in one, each answered apart."""

from __future__ import annotations

from collections.abc import Callable
from email.message import Message
from email.parser import BytesParser, Parser
from http.client import responses
from uuid import uuid4

from tpukit.emulator.errors import invalid
from tpukit.emulator.exchange import Reply, Request

PATH = "/batch/compute/v1"
#: Cloud documentation, "Batch requests": at most 1,000 calls.
MOST = 1000


def answer_batch(request: Request, answer: Callable[[Request], Reply]) -> Reply:
    """Answer every part of a multipart request in its order, in one multipart reply.

    A part that an injected fault cuts off cuts off the whole reply.
    """
    header = f"Content-Type: {request.content_type}\r\n\r\n".encode("latin-1", "replace")
    parsed = BytesParser().parsebytes(header + request.body)
    parts = parsed.get_payload()
    if not parsed.is_multipart() or not isinstance(parts, list) or len(parts) > MOST:
        raise invalid(f"A batch is a multipart/mixed body of at most {MOST} requests.")
    boundary = f"batch_{uuid4().hex}"
    chunks: list[str] = []
    for part in parts:
        if not isinstance(part, Message):
            raise invalid("A part of a batch must be an application/http message.")
        reply = answer(_inner(part, request.authorization))
        if reply.cut:
            return reply
        chunks.append(f"--{boundary}\r\n{_outer(part, reply)}")
    body = "".join(chunks) + f"--{boundary}--\r\n"
    return Reply(200, body.encode(), f"multipart/mixed; boundary={boundary}")


def _inner(part: Message, authorization: str) -> Request:
    text = str(part.get_payload(decode=False))
    line, _, rest = text.lstrip().partition("\n")
    verb, _, target = line.strip().removesuffix("HTTP/1.1").strip().partition(" ")
    message = Parser().parsestr(rest)
    body = str(message.get_payload(decode=False)).encode()
    kind = message.get_content_type()
    return Request(verb, target.strip(), body, authorization, kind)


def _outer(part: Message, reply: Reply) -> str:
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

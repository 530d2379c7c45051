"""A worker's metadata server, with the documents that frameworks read.

Google's answers on 169.254.169.254; frameworks find this one through GCE_METADATA_IP.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import Callable, Mapping

from tpukit.emulator.workers.engines.engine import EmulatedWorker
from tpukit.emulator.workers.guest_attributes import (
    LARGEST_VALUE,
    read_attributes,
    write_attribute,
)
from tpukit.emulator.workers.peer_account import is_of_this_account

_ROOT = "/computeMetadata/v1/"
_ACCOUNT = "instance/service-accounts/default/"
_TOKEN = f"{_ACCOUNT}token"
_GUEST = f"{_ROOT}instance/guest-attributes/"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,9})\r\n", re.IGNORECASE)
_PATIENCE = 10.0  #: seconds for a complete request to arrive


async def start_metadata_server(
    worker: EmulatedWorker,
    listener: socket.socket,
    token: Callable[[], str],
    metadata: Callable[[], Mapping[str, str] | None],
) -> asyncio.AbstractServer:
    """Serve one worker's documents on a socket.

    `token` returns the access token of the worker's service account for calls of this emulator,
    `metadata` an instance's attributes at the moment of a request, or None for those of the slice.
    """
    slice_attributes = worker.facts.attributes(worker.index)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_PATIENCE):
                # Without a network of the worker's own, other accounts can connect too.
                ends = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
                if not await asyncio.to_thread(is_of_this_account, *ends):
                    writer.close()
                    return
                request = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(_body_length(request))
            guest = _guest_attributes(worker, request, body)
            attributes = metadata()
            current = _documents(worker, slice_attributes if attributes is None else attributes)
            current[_TOKEN] = _token(token())
            writer.write(respond(current, request) if guest is None else guest)
            await writer.drain()
        writer.close()

    return await asyncio.start_server(serve, sock=listener)


def _token(value: str) -> str:
    """Return a token in the form of Compute Engine's metadata server.

    Compute Engine documentation, "Authenticate workloads using service accounts".
    """
    return json.dumps({"access_token": value, "expires_in": 3599, "token_type": "Bearer"})


def _documents(worker: EmulatedWorker, attributes: Mapping[str, str]) -> dict[str, str]:
    """Return a worker's documents by their paths below /computeMetadata/v1/."""
    facts = worker.facts
    return {
        **{f"instance/attributes/{name}": value for name, value in attributes.items()},
        "instance/attributes/": "".join(f"{name}\n" for name in sorted(attributes)),
        "instance/hostname": facts.full_hostname(worker.index),
        "instance/name": worker.record.hostname,
        "instance/network-interfaces/0/ip": worker.address,
        **({f"{_ACCOUNT}email": facts.service_account} if facts.service_account else {}),
        f"{_ACCOUNT}scopes": "https://www.googleapis.com/auth/cloud-platform\n",
        "instance/zone": f"projects/{facts.project_number}/zones/{facts.zone}",
        "project/numeric-project-id": facts.project_number,
        "project/project-id": facts.project,
    }


def respond(documents: Mapping[str, str], request: bytes) -> bytes:
    """Return the HTTP answer to a request, given its head."""
    method, path, rest = _parsed(request)
    if method != "GET":
        return _answer("405 Method Not Allowed", "")
    if path == "/":
        return _answer("200 OK", "computeMetadata/\n")
    if "metadata-flavor: google" not in rest.lower():
        return _MISSING_HEADER
    document = documents.get(path.removeprefix(_ROOT)) if path.startswith(_ROOT) else None
    return _answer("404 Not Found", "") if document is None else _answer("200 OK", document)


def _guest_attributes(worker: EmulatedWorker, request: bytes, body: bytes) -> bytes | None:
    """Return the answer to a request about guest attributes, or None for other requests."""
    method, path, rest = _parsed(request)
    key = path.removeprefix(_GUEST)
    if key == path:
        return None
    if "metadata-flavor: google" not in rest.lower():
        return _MISSING_HEADER
    if method == "GET":
        return _published(read_attributes(worker.folder), key)
    if method not in ("PUT", "DELETE"):
        return _answer("405 Method Not Allowed", "")
    if len(body) > LARGEST_VALUE:
        return _answer("413 Request Entity Too Large", "")
    value = body.decode("utf-8", "replace") if method == "PUT" else None
    done = write_attribute(worker.folder, key, value)
    return _answer("200 OK" if done else "404 Not Found", "")


def _published(published: Mapping[str, str], key: str) -> bytes:
    """Return the answer with one value, or with the names below a namespace or below ""."""
    if key in published:
        return _answer("200 OK", published[key])
    below = {
        name.removeprefix(key).partition("/")[0] + ("/" if not key else "")
        for name in published
        if name.startswith(key) and (not key or key.endswith("/"))
    }
    return _answer("200 OK", "\n".join(sorted(below))) if below else _answer("404 Not Found", "")


def _parsed(request: bytes) -> tuple[str, str, str]:
    """Return method, path and headers from a request's head."""
    first, _, rest = request.decode("latin-1").partition("\r\n")
    method, path, *_ = [*first.split(), "", ""]
    return method, path.partition("?")[0], rest


def _body_length(request: bytes) -> int:
    """Return the number of bytes of the body to read, at most one more than the largest value."""
    match = _LENGTH.search(request)
    return min(int(match[1]), LARGEST_VALUE + 1) if match else 0


def _answer(status: str, body: str) -> bytes:
    content = body.encode()
    head = (
        f"HTTP/1.1 {status}\r\nMetadata-Flavor: Google\r\nContent-Type: application/text\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + content


_MISSING_HEADER = _answer("403 Forbidden", "Missing Metadata-Flavor:Google header.\n")

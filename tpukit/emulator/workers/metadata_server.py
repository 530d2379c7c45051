"""A worker's own metadata server, as far as frameworks ask it.

GCE's answers on 169.254.169.254; frameworks find this one through GCE_METADATA_IP.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Mapping

from tpukit.emulator.workers.engines.engine import EmulatedWorker

_ROOT = "/computeMetadata/v1/"
_ACCOUNT = "instance/service-accounts/default/"
_TOKEN = f"{_ACCOUNT}token"
_PATIENCE = 10.0  #: seconds for a request to arrive


async def start_metadata_server(
    worker: EmulatedWorker, listener: socket.socket, token: Callable[[], str]
) -> asyncio.AbstractServer:
    """Serve the documents of one worker on an address and port of its own.

    `token` returns what authorises calls of this emulator: that of the worker's service account.
    """
    documents = _documents(worker)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_PATIENCE):
                request = await reader.readuntil(b"\r\n\r\n")
            writer.write(respond({**documents, _TOKEN: _token(token())}, request))
            await writer.drain()
        writer.close()

    return await asyncio.start_server(serve, sock=listener)


def _token(value: str) -> str:
    """Return a token as the metadata server of Compute Engine gives it.

    Compute Engine documentation, "Authenticate workloads using service accounts".
    """
    return json.dumps({"access_token": value, "expires_in": 3599, "token_type": "Bearer"})


def _documents(worker: EmulatedWorker) -> dict[str, str]:
    """Return every document of a worker by its path below /computeMetadata/v1/."""
    facts = worker.facts
    attributes = facts.attributes(worker.index)
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
    """Return the HTTP answer to the head of a request."""
    first, _, rest = request.decode("latin-1").partition("\r\n")
    method, path, *_ = [*first.split(), "", ""]
    path = path.partition("?")[0]
    if method != "GET":
        return _answer("405 Method Not Allowed", "")
    if path == "/":
        return _answer("200 OK", "computeMetadata/\n")
    if "metadata-flavor: google" not in rest.lower():
        return _answer("403 Forbidden", "Missing Metadata-Flavor:Google header.\n")
    document = documents.get(path.removeprefix(_ROOT)) if path.startswith(_ROOT) else None
    return _answer("404 Not Found", "") if document is None else _answer("200 OK", document)


def _answer(status: str, body: str) -> bytes:
    content = body.encode()
    head = (
        f"HTTP/1.1 {status}\r\nMetadata-Flavor: Google\r\nContent-Type: application/text\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + content

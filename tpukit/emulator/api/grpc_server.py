"""The Cloud TPU API over gRPC: every call becomes the equivalent REST request.

Both protocols therefore share handlers, faults, log and token. Import this module only on demand:
gRPC and Google's types take half a second.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote, urlencode

import grpc
from google.protobuf import json_format
from google.rpc import status_pb2

from tpukit.emulator.api.exchange import ApiReply, ApiRequest
from tpukit.emulator.api.grpc_methods import GrpcMethod, methods
from tpukit.emulator.api.tls import TlsIdentity
from tpukit.emulator.core.api_errors import CODES, Json, encode
from tpukit.emulator.core.operation_metadata import metadata_type

_COMMON, _TPU = metadata_type("common", "v2"), metadata_type("tpu", "v2")
#: The number of simultaneous calls; every `stall` fault occupies one.
_THREADS = 32
#: The limits, in milliseconds, of a handshake and of a connection without calls. They keep
#: strangers out; clients reconnect by themselves.
_LIMITS = [("grpc.server_handshake_timeout_ms", 10_000), ("grpc.max_connection_idle_ms", 60_000)]
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_DETAILS = "grpc-status-details-bin"  #: google-api-core reads an error's details here


class GrpcServer:
    """A gRPC server on 127.0.0.1 that replies with `answer`; with an identity, it uses TLS."""

    def __init__(
        self,
        answer: Callable[[ApiRequest], ApiReply],
        port: int = 0,
        identity: TlsIdentity | None = None,
    ) -> None:
        pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="grpc")
        options = [("grpc.so_reuseport", 0), *_LIMITS]
        self._server = grpc.server(pool, handlers=[_Handler(answer)], options=options)
        address = f"127.0.0.1:{port}"
        self.port: int
        if identity is None:
            self.port = self._server.add_insecure_port(address)
        else:
            pair = [(identity.key.read_bytes(), identity.certificate.read_bytes())]
            credentials = grpc.ssl_server_credentials(pair)
            self.port = self._server.add_secure_port(address, credentials)
        self._server.start()

    def stop(self) -> None:
        self._server.stop(grace=0).wait()


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, answer: Callable[[ApiRequest], ApiReply]) -> None:
        self._answer = answer
        self._methods = methods()

    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        method = self._methods.get(call.method)
        if method is None:
            return None
        return grpc.unary_unary_rpc_method_handler(
            lambda message, context: self._serve(method, message, context),
            request_deserializer=method.request.FromString,
            response_serializer=method.response.SerializeToString,
        )

    def _serve(self, method: GrpcMethod, message: Any, context: grpc.ServicerContext) -> Any:
        authorization = dict(context.invocation_metadata()).get("authorization", "")
        reply = self._answer(transcode(method, message, str(authorization)))
        if reply.cut:
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        document = _document(reply)
        if reply.status != 200:
            _abort(context, document)
        return _message(document, method.response())


def _message(document: Json, message: Any) -> Any:
    """Return an answer as a protobuf message.

    No installed package defines google.cloud.common.OperationMetadata. Its fields have the names
    and numbers of google.cloud.tpu.v2.OperationMetadata, so that type packs it.
    """
    text = json.dumps(document).replace(json.dumps(_COMMON), json.dumps(_TPU))
    json_format.Parse(text, message, ignore_unknown_fields=True)
    if _COMMON in json.dumps(document):
        for operation in getattr(message, "operations", [message]):
            operation.metadata.type_url = _COMMON
    return message


def transcode(method: GrpcMethod, message: Any, authorization: str) -> ApiRequest:
    """Return the REST request for an RPC: its path, query and body."""
    document = json_format.MessageToDict(message)
    path = re.sub(r"\{([\w.]+)\}", lambda match: _take(document, match[1]), method.path)
    if method.body == "*":
        body, document = document, {}
    else:
        body = document.pop(method.body, {}) if method.body else {}
    query = urlencode({name: _text(value) for name, value in document.items()})
    target = f"{path}?{query}" if query else path
    sent, shared = encode(body), method.any_version
    return ApiRequest(method.verb, target, sent, authorization, any_version=shared)


def _take(document: Json, field: str) -> str:
    """Return a field's value for the path, and remove the field unless it is inside the body."""
    outer, _, inner = field.partition(".")
    value = document.get(outer, {}).get(inner, "") if inner else document.pop(outer, "")
    return quote(str(value), safe="/")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _document(reply: ApiReply) -> Json:
    """Return a reply's JSON; a page, as for an unknown path, becomes UNIMPLEMENTED."""
    if not reply.content_type.startswith("application/json"):
        text = "The emulator has no such method."
        return {"error": {"status": "UNIMPLEMENTED", "message": text}}
    document: Json = json.loads(reply.body)
    return document


def _abort(context: grpc.ServicerContext, document: Json) -> None:
    error = document["error"]
    number = CODES[error.get("status", "UNKNOWN")][0]
    status = {"code": number, "message": error["message"], "details": error.get("details", [])}
    try:
        packed = json_format.ParseDict(status, status_pb2.Status())
    except json_format.ParseError:  # an injected detail has an unknown type
        packed = status_pb2.Status(code=number, message=error["message"])
    context.set_trailing_metadata([(_DETAILS, packed.SerializeToString())])
    context.abort(_CODES[number], error["message"])

"""The Cloud TPU API over gRPC: every call is answered as the REST request that it stands for.

So both protocols have the same handlers, faults, log and token. Imported only when asked for: gRPC
and Google's types take half a second.
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
#: Calls that are answered at the same time; `stall` faults hold one each.
_THREADS = 32
#: Milliseconds in which a connection must have begun to speak HTTP/2, and after which one without a
#: call is closed: clients connect anew by themselves, and strangers do not stay.
_LIMITS = [("grpc.server_handshake_timeout_ms", 10_000), ("grpc.max_connection_idle_ms", 60_000)]
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_DETAILS = "grpc-status-details-bin"  #: where google-api-core reads the details of an error


class GrpcServer:
    """A gRPC server on 127.0.0.1 that asks `answer`; encrypted where it has an identity."""

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
    """Return an answer as a message.

    google.cloud.common.OperationMetadata has the fields of google.cloud.tpu.v2.OperationMetadata,
    with the same numbers. No package here defines it, so it is packed as that one.
    """
    text = json.dumps(document).replace(json.dumps(_COMMON), json.dumps(_TPU))
    json_format.Parse(text, message, ignore_unknown_fields=True)
    if _COMMON in json.dumps(document):
        for operation in getattr(message, "operations", [message]):
            operation.metadata.type_url = _COMMON
    return message


def transcode(method: GrpcMethod, message: Any, authorization: str) -> ApiRequest:
    """Return the REST request that an RPC stands for: its path, query and body."""
    document = json_format.MessageToDict(message)
    path = re.sub(r"\{([\w.]+)\}", lambda found: _take(document, found[1]), method.path)
    if method.body == "*":
        body, document = document, {}
    else:
        body = document.pop(method.body, {}) if method.body else {}
    query = urlencode({name: _text(value) for name, value in document.items()})
    target = f"{path}?{query}" if query else path
    sent, shared = encode(body), method.any_version
    return ApiRequest(method.verb, target, sent, authorization, any_version=shared)


def _take(document: Json, field: str) -> str:
    """Return a field of the path; it is taken out, except where it is part of the body."""
    outer, _, inner = field.partition(".")
    found = document.get(outer, {}).get(inner, "") if inner else document.pop(outer, "")
    return quote(str(found), safe="/")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _document(reply: ApiReply) -> Json:
    """Return what was answered; a page of the front end means that there is no such method."""
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
    except json_format.ParseError:  # an injected detail of a type that nobody knows
        packed = status_pb2.Status(code=number, message=error["message"])
    context.set_trailing_metadata([(_DETAILS, packed.SerializeToString())])
    context.abort(_CODES[number], error["message"])

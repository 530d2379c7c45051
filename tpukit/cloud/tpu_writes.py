"""The calls that change nodes: the only importer of google-cloud-tpu, which takes 245 ms of CPU.

REST transport: the default gRPC one costs 75 ms more, wants TLS and cannot be pointed at a local
endpoint. No method of the library has a timeout or a retry of its own, nor a limit for what it
reads, and it fails in its own code on an answer that is not the API's.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

from google.api_core.client_options import ClientOptions
from google.auth.credentials import Credentials
from google.cloud import tpu_v2
from google.protobuf.json_format import ParseError

from tpukit.cloud.access_tokens import AccessTokens
from tpukit.cloud.failures import RestFailure, from_answer, unreadable
from tpukit.cloud.http_client import LARGEST_ANSWER
from tpukit.models import ApiCall
from tpukit.settings.table import is_loopback


class TpuWrites:
    """Makes one call each time, with no repeats."""

    def __init__(self, tokens: AccessTokens, endpoint: str) -> None:
        options = ClientOptions(api_endpoint=endpoint)
        self._client = tpu_v2.TpuClient(
            credentials=_Credentials(tokens), transport="rest", client_options=options
        )
        http = self._client.transport._session
        http.hooks["response"].append(_check)
        http.trust_env = not is_loopback(endpoint)  # a proxy cannot reach this machine

    def call(self, method: str, request: Any, seconds: float) -> str:
        """Make a call and return the name of its operation.

        Raises `RestFailure` for a refusal, and what requests and google-auth raise where no answer
        came.
        """
        try:
            made = getattr(self._client, method)(request, timeout=seconds, retry=None)
            return str(made.operation.name)
        except (ParseError, AttributeError, KeyError, TypeError) as error:
            raise RestFailure(unreadable(error)) from error

    def planned(self, method: str, request: Any) -> ApiCall:
        """Return a call as it would be sent, and send nothing."""
        http = self._client.transport._session
        kept = http.send

        def keep(prepared: Any, **_: Any) -> None:
            raise _Planned(prepared)

        http.send = keep
        try:
            getattr(self._client, method)(request, retry=None)
        except _Planned as planned:
            sent = planned.request
        finally:
            http.send = kept
        body = json.loads(sent.body) if sent.body else None
        return ApiCall(sent.method, unquote(sent.url), body)


class _Planned(Exception):
    """Raised in place of sending a request."""

    def __init__(self, request: Any) -> None:
        super().__init__()
        self.request = request


class _Credentials(Credentials):  # type: ignore[misc]
    """Credentials of google-auth that leave every decision to `AccessTokens`."""

    def __init__(self, tokens: AccessTokens) -> None:
        super().__init__()
        self._tokens = tokens
        self._sent: dict[str, str] = {}

    def before_request(self, request: Any, method: str, url: str, headers: Any) -> None:
        """Add the headers of a call."""
        self._sent = self._tokens.headers()
        headers.update(self._sent)

    def refresh(self, request: Any) -> None:
        """Have another token: the API answered 401."""
        self._tokens.renew(self._sent)


def _check(response: Any, **_: Any) -> None:
    """Read an answer up to its largest size; raise what is a refusal as we read it ourselves."""
    content = bytearray()
    for part in response.iter_content(2**16):
        content += part
        if len(content) > LARGEST_ANSWER:
            raise ValueError("the answer is too large")
    response._content = bytes(content)  # where requests keeps what was read
    if response.status_code >= 300 and response.status_code != 401:  # then google-auth has its turn
        raise RestFailure(from_answer(response.status_code, response._content, response.headers))

"""Our access tokens as google-cloud-tpu takes them."""

from __future__ import annotations

from typing import Any

import google.auth.credentials

from tpukit.cloud.access_tokens import AccessTokens


class GoogleCredentials(google.auth.credentials.Credentials):  # type: ignore[misc]
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

"""The headers that authorise calls. Files keep the access token from one command to the next."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tpukit.clock import Clock
from tpukit.errors import Fix, NotAuthenticated, TpukitError
from tpukit.google.credentials import Credentials, Token
from tpukit.google.failures import LOGIN, TOKEN_REFUSED, Failure, RestFailure
from tpukit.paths import private_directory, read_own, replace_file

#: Seconds of life that a token must have left: a call takes time, and clocks differ.
_MARGIN = 300.0
#: The longest life of a token in seconds: https://cloud.google.com/docs/authentication/token-types
_LONGEST = 12 * 3600.0


class KeptTokens:
    """Access tokens in private files, one for each key."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get(self, key: str) -> Token | None:
        """Return the token of a key, valid or expired; None if its file is missing or untrusted."""
        with suppress(TpukitError, OSError, ValueError, TypeError, KeyError):
            return _token_of(json.loads(read_own(self._path(key))))
        return None

    def put(self, key: str, token: Token) -> None:
        """Keep a token if the folder can be written, and remove files that have expired."""
        with suppress(OSError, TpukitError):
            private_directory(self._directory)
            path = self._path(key)
            replace_file(path, json.dumps(asdict(token)))
            oldest = path.stat().st_mtime - _LONGEST
            for file in self._directory.iterdir():
                if file.stat().st_mtime < oldest:
                    file.unlink()

    def _path(self, key: str) -> Path:
        return self._directory / f"{key}.json"


def _token_of(document: Any) -> Token:
    """Return the token of a JSON document.

    Raises ValueError, TypeError or KeyError if the document has none.
    """
    value, account = str(document["value"]), str(document["account"])
    if not _is_header(value) or not account.isprintable():
        raise ValueError("a header must be printable")
    return Token(value, float(document["expires"]), account)


def _is_header(value: str) -> bool:
    return value.isascii() and value.isprintable()


class AccessTokens:
    """The authorisation of one command's calls; threads may share it.

    Without credentials it adds no headers. With `quota_fallback`, calls go on without the quota
    project if Google denies its use. `on_account` gets the account's name once, before its first
    call.
    """

    def __init__(
        self,
        credentials: Credentials | None,
        clock: Clock,
        *,
        kept: KeptTokens | None = None,
        quota_project: str = "",
        quota_fallback: bool = False,
        on_account: Callable[[str], None] = lambda account: None,
    ) -> None:
        self._credentials = credentials
        self._clock = clock
        self._kept = kept if credentials and credentials.key else None
        self._quota_project = quota_project
        self._quota_fallback = quota_fallback
        self._on_account = on_account
        self._lock = threading.Lock()
        self._token: Token | None = None

    @property
    def account(self) -> str:
        """The account that makes the calls; empty while it is unknown."""
        token = self._token or self._read()
        named = self._credentials.account if self._credentials else ""
        return (token.account if token else "") or named

    def headers(self) -> dict[str, str]:
        """Return the headers that authorise a call now; none without credentials.

        Raises the errors of `Credentials.fetch`.
        """
        if self._credentials is None:
            return {}
        with self._lock:
            if self._token is None or not self._is_fresh(self._token):
                self._use(self._usable() or self._fetch(self._credentials))
            quota = {"x-goog-user-project": self._quota_project} if self._quota_project else {}
            return {"authorization": f"Bearer {self._value}", **quota}

    def renew(self, refused: Mapping[str, str]) -> None:
        """Get another token after the API has refused these headers with 401.

        Raises `NotAuthenticated` without credentials, `RestFailure` if the new token is the refused
        one, and the errors of `headers`.
        """
        if self._credentials is None:
            raise NotAuthenticated(
                "the API asks for credentials, but auth/disable_credentials is set",
                fix=Fix.command("tpukit", "config", "explain", note="shows its origin"),
            )
        with self._lock:
            value = refused.get("authorization", "").removeprefix("Bearer ")
            if value != self._value:
                return  # another thread has already renewed the token
            token = self._fetch(self._credentials)
            if token.value == value:
                what = f"the API refuses the token of {self._credentials.description}"
                raise RestFailure(Failure("UNAUTHENTICATED", what, 401, TOKEN_REFUSED))
            self._use(token)

    def drop_quota_project(self) -> bool:
        """Stop sending the quota project if `quota_fallback` allows it; return True if it does."""
        dropped = self._quota_fallback and bool(self._quota_project)
        self._quota_project = "" if dropped else self._quota_project
        return dropped

    @property
    def _value(self) -> str:
        return self._token.value if self._token else ""

    def _use(self, token: Token) -> None:
        first, self._token = self._token is None, token
        if first and self.account:
            self._on_account(self.account)

    def _read(self) -> Token | None:
        return self._kept.get(self._credentials.key) if self._kept and self._credentials else None

    def _usable(self) -> Token | None:
        """Return the kept token unless it has expired, or seems to live longer than tokens can.

        It seems so if the clock has been set back since.
        """
        token = self._read()
        fresh = token and self._is_fresh(token) and self._left(token) <= _LONGEST
        return token if fresh else None

    def _is_fresh(self, token: Token) -> bool:
        return self._left(token) > _MARGIN

    def _left(self, token: Token) -> float:
        return token.expires - self._clock.time()

    def _fetch(self, credentials: Credentials) -> Token:
        token = credentials.fetch()
        if not _is_header(token.value):  # the error of http.client would show the token
            raise NotAuthenticated(f"{credentials.description} gave no valid token", fix=LOGIN)
        if self._kept and math.isfinite(token.expires):
            self._kept.put(credentials.key, token)
        return token

"""The headers that authorise calls, from an access token that is kept between commands."""

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
from tpukit.cloud.credentials import Credentials, Token
from tpukit.cloud.failures import LOGIN, TOKEN_REFUSED, Failure, RestFailure
from tpukit.errors import Fix, NotAuthenticated, TpukitError
from tpukit.paths import private_directory, read_own, replace_file

#: Seconds before its end from which on a token is not used: a call, and the clocks, take some.
_MARGIN = 300.0
#: Seconds that a token can live at most: https://cloud.google.com/docs/authentication/token-types
_LONGEST = 12 * 3600.0


class KeptTokens:
    """Tokens in files of their own, each for its owner alone; what cannot be kept is not."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get(self, key: str) -> Token | None:
        """Return the token of a key, valid or not; None where there is none that can be trusted."""
        with suppress(TpukitError, OSError, ValueError, TypeError, KeyError):
            return _token_of(json.loads(read_own(self._path(key))))
        return None

    def put(self, key: str, token: Token) -> None:
        """Keep a token, where it can be."""
        with suppress(OSError, TpukitError):
            private_directory(self._directory)
            path = self._path(key)
            replace_file(path, json.dumps(asdict(token)))
            oldest = path.stat().st_mtime - _LONGEST
            for each in self._directory.iterdir():
                if each.stat().st_mtime < oldest:  # of credentials that nobody uses any more
                    each.unlink()

    def _path(self, key: str) -> Path:
        return self._directory / f"{key}.json"


def _token_of(document: Any) -> Token:
    """Return the token of a JSON document; raise ValueError, TypeError or KeyError for no token."""
    value, account = str(document["value"]), str(document["account"])
    if not _is_header(value) or not account.isprintable():
        raise ValueError("what is not printable is no header")
    return Token(value, float(document["expires"]), account)


def _is_header(value: str) -> bool:
    return value.isascii() and value.isprintable()


class AccessTokens:
    """What authorises the calls of one command, for any number of threads.

    Without credentials nothing is sent. `quota_fallback` lets calls go on without the quota project
    where it may not be used. `on_account` gets the account once calls are made as it.
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
        """The account that calls are made as; empty where it is unknown, or not known yet."""
        token = self._token or self._read()
        named = self._credentials.account if self._credentials else ""
        return (token.account if token else "") or named

    def headers(self) -> dict[str, str]:
        """Return the headers that authorise a call made now; none without credentials.

        Raises as `Credentials.fetch` does.
        """
        if self._credentials is None:
            return {}
        with self._lock:
            if self._token is None or not self._is_fresh(self._token):
                self._use(self._usable() or self._fetch(self._credentials))
            quota = {"x-goog-user-project": self._quota_project} if self._quota_project else {}
            return {"authorization": f"Bearer {self._value}", **quota}

    def renew(self, refused: Mapping[str, str]) -> None:
        """Get another token, after the API refused these headers with 401.

        Raises `NotAuthenticated` if there are no credentials to use, `RestFailure` if the same
        token comes again, else as `headers` does.
        """
        if self._credentials is None:
            raise NotAuthenticated(
                "the API wants credentials, and auth/disable_credentials keeps them back",
                fix=Fix.command("tpukit", "config", "explain", note="shows where it is set"),
            )
        with self._lock:
            value = refused.get("authorization", "").removeprefix("Bearer ")
            if value != self._value:
                return  # another thread was here first
            token = self._fetch(self._credentials)
            if token.value == value:
                what = f"the API refuses the token of {self._credentials.description}"
                raise RestFailure(Failure("UNAUTHENTICATED", what, 401, TOKEN_REFUSED))
            self._use(token)

    def drop_quota_project(self) -> bool:
        """Send no quota project from now on, where falling back is asked for.

        Returns whether that changes anything.
        """
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
        """Return the kept token, unless it is old or the clock was turned back since."""
        token = self._read()
        fresh = token and self._is_fresh(token) and self._left(token) <= _LONGEST
        return token if fresh else None

    def _is_fresh(self, token: Token) -> bool:
        return self._left(token) > _MARGIN

    def _left(self, token: Token) -> float:
        return token.expires - self._clock.time()

    def _fetch(self, credentials: Credentials) -> Token:
        token = credentials.fetch()
        if not _is_header(token.value):  # http.client would put it into its error
            raise NotAuthenticated(f"no token came from {credentials.description}", fix=LOGIN)
        if self._kept and math.isfinite(token.expires):
            self._kept.put(credentials.key, token)
        return token

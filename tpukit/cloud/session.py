"""Credentials, and the session that makes every API call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import google.auth
import google.auth.credentials
import google.auth.exceptions
import google.auth.transport.requests
import google.oauth2.credentials

from tpukit.clock import Clock, Deadline
from tpukit.cloud.failures import LOGIN, RestFailure, from_exception, from_response, to_error
from tpukit.errors import BadInput, NotAuthenticated
from tpukit.text import one_line

Answer = TypeVar("Answer")

SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
#: Seconds for one request: google-cloud-tpu itself sets none and would wait for ever.
TIMEOUT = 20.0
#: What google-auth runs into where a credentials file holds JSON of another shape.
_WRONG_SHAPE = (AttributeError, KeyError, TypeError)


def load_credentials(
    access_token_file: str, credentials_file: str, well_known_file: Path, quota_project: str
) -> google.auth.credentials.Credentials:
    """Return credentials from a token file, a credentials file, or Application Default Credentials.

    `google.auth.default()` is not used: without credentials it asks the metadata server for up to
    12 s, and with them it runs gcloud as a subprocess for the project. On a Compute Engine VM, the
    metadata server's own credentials are the last resort.

    Raises:
        NotAuthenticated: none of them is there, or the file cannot be used.
        BadInput: a file that was named cannot be read.
    """
    if access_token_file:
        return google.oauth2.credentials.Credentials(_token(Path(access_token_file)))
    named = credentials_file or (str(well_known_file) if well_known_file.is_file() else "")
    if named:
        return _from_file(named, quota_project)
    if on_compute_engine():
        from google.auth import compute_engine

        return compute_engine.Credentials()
    raise NotAuthenticated("no credentials for Google Cloud", fix=LOGIN)


def on_compute_engine(product: Path = Path("/sys/class/dmi/id/product_name")) -> bool:
    """Return whether the machine's DMI name is that of a Google VM; this makes no request."""
    try:
        return product.read_text(encoding="ascii", errors="replace").strip().startswith("Google")
    except OSError:
        return False


def _token(path: Path) -> str:
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"cannot read the access token file {path}", why=str(error), fix=LOGIN
        ) from (error)
    if not token or not token.isprintable() or " " in token:
        raise BadInput(f"the access token file {path} does not hold one token", fix=LOGIN)
    return token


def _from_file(path: str, quota_project: str) -> google.auth.credentials.Credentials:
    try:
        credentials, _ = google.auth.load_credentials_from_file(
            path, scopes=SCOPES, quota_project_id=quota_project or None
        )
    except (google.auth.exceptions.GoogleAuthError, OSError, ValueError, *_WRONG_SHAPE) as error:
        why = one_line(str(error)) or type(error).__name__
        raise NotAuthenticated(
            f"cannot use the credentials in {path}", why=why, fix=LOGIN
        ) from error
    return credentials


class Session:
    """An authorised HTTP session, and `call`, through which every API call goes."""

    def __init__(
        self,
        credentials: google.auth.credentials.Credentials,
        clock: Clock,
        retry_seconds: float = 30.0,
        timeout: float = TIMEOUT,
        on_retry: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.credentials = credentials
        self.clock = clock
        self.retry_seconds = retry_seconds
        self.timeout = timeout
        self.on_retry = on_retry
        self._http = google.auth.transport.requests.AuthorizedSession(
            credentials, max_refresh_attempts=1
        )

    def call(self, doing: str, request: Callable[[], Answer], *, repeat: bool = True) -> Answer:
        """Return what `request` returns, repeating it after transient faults.

        `repeat=False` is for the calls that bill: such a call is made once, except where the server
        answered that it did nothing (429). The waits grow from 0.5 s to 8 s, or take the delay that
        the server names (AIP-194), and end after `retry_seconds`.

        Raises:
            Doubtful: the answer to a call that is not repeated was lost.
            TpukitError: the call failed; of the class that `failures.to_error` gives.
        """
        deadline = Deadline.after(self.clock, self.retry_seconds)
        pause = 0.5
        while True:
            try:
                return request()
            except Exception as error:
                failure = from_exception(error)
                if failure is None:
                    raise
                wait = max(pause, failure.retry_after or 0.0)
                again = failure.transient and (repeat or failure.http == 429)
                if not again or wait > deadline.remaining():
                    raise to_error(failure, doing, reading_back=not repeat) from error
            self.on_retry(f"{doing}: {failure.message or failure.status}; again in {wait:g} s")
            self.clock.sleep(wait)
            pause = min(pause * 2, 8.0)

    def rest(
        self, doing: str, method: str, url: str, *, body: Any = None, repeat: bool = True
    ) -> dict[str, Any]:
        """Make one REST call with a JSON body and return the JSON object of the answer."""
        return self.call(doing, lambda: self._rest(method, url, body), repeat=repeat)

    def _rest(self, method: str, url: str, body: Any) -> dict[str, Any]:
        response = self._http.request(
            method, url, json=body, timeout=self.timeout, max_allowed_time=self.timeout
        )
        if response.status_code >= 400:
            raise RestFailure(from_response(response.status_code, response))
        answer = response.json()
        if not isinstance(answer, dict):
            raise ValueError("the answer is not a JSON object")
        return answer

"""The session that makes every API call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import google.auth.credentials
import google.auth.transport.requests

from tpukit.clock import Clock, Deadline
from tpukit.cloud.failures import RestFailure, from_exception, from_response, to_error

Answer = TypeVar("Answer")

#: Seconds for one request: google-cloud-tpu itself sets none and would wait for ever.
TIMEOUT = 20.0


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

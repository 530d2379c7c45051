"""The session that makes every API call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import Any, TypeVar
from urllib.parse import urlencode

import google.auth.transport.requests

from tpukit.clock import Clock, Deadline
from tpukit.cloud.access_tokens import AccessTokens
from tpukit.cloud.failures import RestFailure, from_exception, from_response, to_error, unreadable
from tpukit.cloud.google_credentials import GoogleCredentials

Answer = TypeVar("Answer")

#: Seconds for one request: google-cloud-tpu itself sets none and would wait for ever.
TIMEOUT = 20.0


class Session:
    """An authorised HTTP session, and `call`, through which every API call goes."""

    def __init__(
        self,
        tokens: AccessTokens,
        clock: Clock,
        retry_seconds: float = 30.0,
        timeout: float = TIMEOUT,
        on_retry: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.tokens = tokens
        self.credentials = GoogleCredentials(tokens)
        self.clock = clock
        self.retry_seconds = retry_seconds
        self.timeout = timeout
        self.on_retry = on_retry
        self._http = google.auth.transport.requests.AuthorizedSession(
            self.credentials, max_refresh_attempts=1
        )

    def once(self) -> Session:
        """Return the same session without repeats: for whoever asks again by himself."""
        other = copy(self)
        other.retry_seconds = 0.0
        return other

    def call(
        self,
        doing: str,
        request: Callable[[], Answer],
        *,
        repeat: bool = True,
        deadline: Deadline | None = None,
    ) -> Answer:
        """Return what `request` returns, repeating it after transient faults.

        `repeat=False` is for the calls that bill: such a call is made once, except where the server
        answered that it did nothing (429). The waits grow from 0.5 s to 8 s, or take the delay that
        the server names (AIP-194), and end at the deadline: `retry_seconds` from now, unless given.

        Raises:
            Doubtful: the answer to a call that is not repeated was lost.
            TpukitError: the call failed; of the class that `failures.to_error` gives.
        """
        deadline = deadline or Deadline.after(self.clock, self.retry_seconds)
        pause = 0.5
        while True:
            try:
                return request()
            except Exception as error:
                failure = from_exception(error)
                if failure is None:
                    raise
                if failure.reason == "USER_PROJECT_DENIED" and self.tokens.drop_quota_project():
                    continue
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
        return self.call(doing, lambda: self._rest(method, url, body, self.timeout), repeat=repeat)

    def hold(self, doing: str, url: str, seconds: float, deadline: Deadline) -> dict[str, Any]:
        """POST where the server holds its answer back for up to `seconds`, and return it."""

        def request() -> dict[str, Any]:
            longest = max(1.0, min(seconds + self.timeout, deadline.remaining()))
            return self._rest("POST", url, None, longest)

        return self.call(doing, request, deadline=deadline)

    def pages(
        self, doing: str, url: str, query: Mapping[str, str | int]
    ) -> Iterator[dict[str, Any]]:
        """Yield each page of a list; raise where a page leads back to one that was read."""
        token, known = "", {""}
        while True:
            words = urlencode({**query, **({"pageToken": token} if token else {})})
            page = self.rest(doing, "GET", f"{url}?{words}")
            yield page
            token = page.get("nextPageToken") or ""
            if not token:
                return
            if not isinstance(token, str) or token in known:
                why = ValueError("a page that leads to itself")
                raise to_error(unreadable(why), doing)
            known.add(token)

    def _rest(self, method: str, url: str, body: Any, seconds: float) -> dict[str, Any]:
        response = self._http.request(
            method, url, json=body, timeout=seconds, max_allowed_time=seconds
        )
        if response.status_code >= 400:
            raise RestFailure(from_response(response.status_code, response))
        answer = response.json()
        if not isinstance(answer, dict):
            raise ValueError("the answer is not a JSON object")
        return answer

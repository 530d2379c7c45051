"""The session that makes every API call."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlencode

from tpukit.clock import Clock, Deadline
from tpukit.cloud.access_tokens import AccessTokens
from tpukit.cloud.failures import (
    TOKEN_REFUSED,
    RestFailure,
    from_answer,
    from_exception,
    parsed,
    to_error,
    unreadable,
)
from tpukit.cloud.http_client import HttpClient
from tpukit.cloud.service_time import ServiceTime
from tpukit.errors import DeadlinePassed, TpukitError
from tpukit.text import one_line

Answer = TypeVar("Answer")

#: Seconds for one request, from its first byte to the last one of its answer.
TIMEOUT = 20.0
#: Seconds for which a server is tried that cannot be reached at all: there is no network, nothing
#: listens, the name is wrong.
_UNREACHED_SECONDS = 4.0
#: Seconds for which a refused token may stay the newest one: a sidecar replaces its file.
_RENEWAL_SECONDS = 10.0
_FIRST_PAUSE = 0.5  #: in seconds, before a call is repeated
#: The most characters of a failure that the line about a repeat shows.
_LONGEST_REASON = 300
#: Seconds for a list of several pages, and the most pages that one has: 100,000 slices.
_LIST_SECONDS, _MOST_PAGES = 120.0, 200
#: Seconds that a request gets even where its deadline has passed: for a last look.
_LAST_SECONDS = 1.0


class Session:
    """Authorised REST, and `call`, through which every API call goes."""

    def __init__(
        self,
        tokens: AccessTokens,
        clock: Clock,
        retry_seconds: float = 30.0,
        timeout: float = TIMEOUT,
        on_retry: Callable[[str], None] = lambda line: None,
        on_difference: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.tokens = tokens
        self.clock = clock
        self.on_retry = on_retry
        self._retry_seconds = retry_seconds
        self._timeout = timeout
        self._limit = Deadline.never(clock)
        self._patient = False
        self._http = HttpClient()
        self._time = ServiceTime(clock, on_difference)

    def now(self) -> float:
        """Return the time by the API's clock, as of its last answer, in seconds since the epoch."""
        return self._time.now()

    def once(self) -> Session:
        """Return the same session without repeats: for whoever asks again by himself."""
        other = copy(self)
        other._retry_seconds, other._patient = 0.0, False
        return other

    def within(self, deadline: Deadline, *, patient: bool = False) -> Session:
        """Return the same session, whose calls are over by a deadline, or a second later.

        A `patient` one repeats what fails in an outage until then, and says so once a call.
        """
        other = copy(self)
        other._limit = min(self._limit, deadline, key=lambda each: each.at)
        if patient:
            other._patient = True
            other._retry_seconds = deadline.remaining()
        return other

    def holding(self, seconds: float, deadline: Deadline) -> Session:
        """Return the same session for a server that holds answers back for up to `seconds`.

        It goes on asking until the deadline.
        """
        other = self.within(deadline, patient=True)
        other._timeout += seconds
        return other

    def call(
        self, doing: str, request: Callable[[float], Answer], *, repeat: bool = True
    ) -> Answer:
        """Return what `request` returns, which gets the seconds it has; repeat transient faults.

        `repeat=False` is for the calls that bill: such a call is made once, except where the server
        answered that it did nothing (429). The waits grow from 0.5 s to 8 s, or take the delay that
        the server names (AIP-194), and end after `retry_seconds`, or by the session's deadline.

        Each attempt raises the audit events `tpukit.call`, before it and once it was answered, so
        that tests can end the process there; without a hook they cost nothing.

        Raises:
            Doubtful: the answer to a call that is not repeated was lost.
            DeadlinePassed: the session's deadline ended it, not a refusal.
            TpukitError: the call failed; of the class that `failures.to_error` gives.
        """
        patience = Deadline.after(self.clock, self._retry_seconds)
        unreached = patience if self._patient else patience.within(_UNREACHED_SECONDS)
        renewal = Deadline.after(self.clock, _RENEWAL_SECONDS)
        pause, seconds = _FIRST_PAUSE, self._timeout
        while True:
            try:
                given = max(_LAST_SECONDS, min(seconds, self._limit.remaining()))
                sys.audit("tpukit.call", "before", doing)
                answer = bounded(given, partial(request, given))
                sys.audit("tpukit.call", "after", doing)
                return answer
            except Exception as error:
                failure = from_exception(error)
                if failure is None:
                    raise
                if failure.reason == "USER_PROJECT_DENIED" and self.tokens.drop_quota_project():
                    continue
                wait = max(pause, failure.retry_after or 0.0)
                refused = failure.reason == TOKEN_REFUSED
                again = refused or (failure.transient and (repeat or failure.http == 429))
                left = (renewal if refused else patience if failure.sent else unreached).remaining()
                if not again or wait > min(left, self._limit.remaining()):
                    late = again and repeat and pause > self._limit.remaining()
                    other = DeadlinePassed if late else TpukitError
                    raise to_error(
                        failure, doing, reading_back=not repeat, otherwise=other
                    ) from error
            if not self._patient or pause == _FIRST_PAUSE:
                why = one_line((failure.message or failure.status)[:_LONGEST_REASON])
                self.on_retry(f"{doing}: {why}; again in {wait:g} s")
            self.clock.sleep(wait)
            pause, seconds = min(pause * 2, 8.0), min(self._timeout, patience.remaining())

    def rest(
        self,
        doing: str,
        method: str,
        url: str,
        *,
        body: Any = None,
        repeat: bool = True,
        named: bool = True,
    ) -> dict[str, Any]:
        """Make one REST call with a JSON body and return the JSON object of the answer.

        `named` is whether the call is on one resource by its name, as `Failure` has it.
        """
        data = None if body is None else json.dumps(body).encode()
        request = partial(self._rest, method, url, data, named)
        return self.call(doing, request, repeat=repeat)

    def pages(
        self, doing: str, url: str, query: Mapping[str, str | int]
    ) -> Iterator[dict[str, Any]]:
        """Yield each page of a list; raise where a page leads back to one that was read.

        All of them together have `_LIST_SECONDS`.
        """
        token, known = "", {""}
        within = self.within(Deadline.after(self.clock, _LIST_SECONDS))
        while True:
            words = urlencode({**query, **({"pageToken": token} if token else {})})
            page = within.rest(doing, "GET", f"{url}?{words}", named=False)
            if "error" in page:
                raise to_error(unreadable(ValueError("an error where a list should be")), doing)
            yield page
            token = page.get("nextPageToken") or ""
            if not token:
                return
            if not isinstance(token, str) or token in known or len(known) == _MOST_PAGES:
                why = ValueError("a page that leads to itself, or pages without an end")
                raise to_error(unreadable(why), doing)
            known.add(token)

    def _rest(
        self, method: str, url: str, body: bytes | None, named: bool, seconds: float
    ) -> dict[str, Any]:
        headers = self.tokens.headers()
        answer = self._http.request(method, url, headers, body, seconds)
        if answer.status == 401:
            self.tokens.renew(headers)
            answer = self._http.request(method, url, self.tokens.headers(), body, seconds)
        if answer.status < 500:  # what is between may say that by a clock of its own
            self._time.saw(answer.headers.get("date", ""))
        if answer.status // 100 != 2:
            failure = from_answer(answer.status, answer.body, answer.headers)
            raise RestFailure(replace(failure, named=named))
        document = parsed(answer.body)
        if not isinstance(document, dict):
            raise ValueError("the answer is not a JSON object")
        return document


def bounded(seconds: float, action: Callable[[], Answer]) -> Answer:
    """Return what `action` returns, or raise TimeoutError after so many seconds.

    The action is then left alone, on a thread that holds up nobody: neither the resolution of a
    name nor what a library does can be ended from outside.
    """
    outcome: list[Answer] = []
    problem: list[BaseException] = []
    ended = threading.Event()

    def act() -> None:
        try:
            outcome.append(action())
        except BaseException as error:  # noqa: BLE001  raised again by who waits
            problem.append(error)
        ended.set()

    threading.Thread(target=act, daemon=True).start()
    if not ended.wait(seconds):
        raise TimeoutError(f"no whole answer in {seconds:.3g} s")
    if problem:
        raise problem[0]
    return outcome[0]

"""The session that makes all API calls."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlencode

from tpukit.clock import Clock, Deadline
from tpukit.errors import BadInput, DeadlinePassed, Fix, TpukitError
from tpukit.google.access_tokens import AccessTokens
from tpukit.google.failures import (
    TOKEN_REFUSED,
    RestFailure,
    from_answer,
    from_exception,
    parsed,
    to_error,
    unreadable,
)
from tpukit.google.http_client import HttpClient
from tpukit.text import one_line

Answer = TypeVar("Answer")

#: Seconds for one request, until the last byte of its answer.
TIMEOUT = 20.0
#: Seconds to try an unreachable server: no network, nothing listens, or a wrong name.
_UNREACHED_SECONDS = 4.0
#: Seconds to wait for a new token if the newest is refused: a sidecar may replace the file.
_RENEWAL_SECONDS = 10.0
_FIRST_PAUSE = 0.5  #: in seconds, before a call is repeated
#: The line about a repeat shows at most this number of characters of the failure.
_LONGEST_REASON = 300
#: Seconds for all pages of a list, and the most pages: 100,000 slices.
_LIST_SECONDS, _MOST_PAGES = 120.0, 200
#: Seconds for a request after its deadline: a wait may look one last time.
_LAST_SECONDS = 1.0
#: The fixes if a list has an unknown project or zone.
_PROJECT = Fix.command(
    *("tpukit", "config", "explain"), note="shows where the project and the zone come from"
)
_ZONES = Fix.command("tpukit", "zones", note="shows the zones of the project")
#: A larger difference between this machine's clock and another one, in seconds, is reported.
CLOCK_DIFFERENCE = 120.0


class Session:
    """Authorised REST calls, repeated after transient failures."""

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
        self._time = _ServiceTime(clock, on_difference)

    def now(self) -> float:
        """Return the time by the API's clock in seconds since the epoch; see `_ServiceTime.now`."""
        return self._time.now()

    def once(self) -> Session:
        """Return the same session without repeats, for callers that repeat calls themselves."""
        other = copy(self)
        other._retry_seconds, other._patient = 0.0, False
        return other

    def within(self, deadline: Deadline, *, patient: bool = False) -> Session:
        """Return the same session with calls that end at most a second after the deadline.

        If `patient`, it repeats calls during an outage until then, and says so once for each call.
        """
        other = copy(self)
        other._limit = min(self._limit, deadline, key=lambda limit: limit.at)
        if patient:
            other._patient = True
            other._retry_seconds = deadline.remaining()
        return other

    def deadline(self, seconds: float) -> Deadline:
        """Return the deadline in so many seconds, or the session's own if that is earlier."""
        return self._limit.within(seconds)

    def holding(self, seconds: float, deadline: Deadline) -> Session:
        """Return the same session for calls that the server may hold open for up to `seconds`.

        It is patient until the deadline.
        """
        other = self.within(deadline, patient=True)
        other._timeout += seconds
        return other

    def call(
        self, doing: str, request: Callable[[float], Answer], *, repeat: bool = True
    ) -> Answer:
        """Call `request` with a limit in seconds and return its answer; repeat transient failures.

        `repeat=False` is for calls that bill: it repeats a call only if the server says that it did
        nothing (429). Pauses grow from 0.5 s to 8 s, or last as long as the server asks (AIP-194).
        Repeats end after `retry_seconds`, or at the session's deadline.

        Each attempt raises the audit event `tpukit.call` before and after it, so that tests can
        stop the process there.

        Raises:
            Doubtful: with `repeat=False`, the answer was lost.
            DeadlinePassed: the session's deadline ended the repeats.
            TpukitError: the call failed; `failures.to_error` chooses the class.
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
        """Make one REST call with a JSON body and return the answer's JSON object.

        `repeat` is as in `call`, `named` as in `Failure`.
        """
        data = None if body is None else json.dumps(body).encode()
        request = partial(self._rest, method, url, data, named)
        return self.call(doing, request, repeat=repeat)

    def pages(
        self, doing: str, url: str, query: Mapping[str, str | int]
    ) -> Iterator[dict[str, Any]]:
        """Yield each page of a list; raise if a page leads back to an earlier one.

        The limit for all pages together is `_LIST_SECONDS`.
        """
        token, known = "", {""}
        within = self.within(Deadline.after(self.clock, _LIST_SECONDS))
        while True:
            words = urlencode({**query, **({"pageToken": token} if token else {})})
            try:
                page = within.rest(doing, "GET", f"{url}?{words}", named=False)
            except BadInput as error:
                if not error.fix:
                    error.fix, error.otherwise = _PROJECT, _ZONES
                raise
            if "error" in page:
                raise to_error(unreadable(ValueError("an error in place of a list")), doing)
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
        if answer.status < 500:  # a proxy may send 5xx, with a wrong clock
            self._time.saw(answer.headers.get("date", ""))
        if answer.status // 100 != 2:
            failure = replace(from_answer(answer.status, answer.body, answer.headers), named=named)
            if named and failure.http == 409:
                # Only a create can find its name taken; another call finds another operation.
                failure = replace(failure, status="ABORTED")
            raise RestFailure(failure)
        document = parsed(answer.body)
        if not isinstance(document, dict):
            raise ValueError("the answer is not a JSON object")
        return document


def bounded(seconds: float, action: Callable[[], Answer]) -> Answer:
    """Return the value of `action`, or raise TimeoutError after `seconds`.

    After that the action goes on in a daemon thread, because Python cannot interrupt the resolution
    of a name or a library's call.
    """
    outcome: list[Answer] = []
    problem: list[BaseException] = []
    ended = threading.Event()

    def act() -> None:
        try:
            outcome.append(action())
        except BaseException as error:  # noqa: BLE001  raised again below
            problem.append(error)
        ended.set()

    threading.Thread(target=act, daemon=True).start()
    if not ended.wait(seconds):
        raise TimeoutError(f"no complete answer in {seconds:.3g} s")
    if problem:
        raise problem[0]
    return outcome[0]


class _ServiceTime:
    """The time by a service's clock, because this machine's clock may be wrong.

    It comes from the `Date` headers of the answers: RFC 9110, section 6.6.1.

    `on_difference` gets once the seconds by which this machine's clock was ahead of the service's
    (negative: behind it) when the last answer came.
    """

    def __init__(self, clock: Clock, on_difference: Callable[[float], None]) -> None:
        self._clock = clock
        self._on_difference = on_difference
        self._reported = False
        self._known = False
        self._ahead = 0.0  #: seconds: the service's clock minus our monotonic clock
        self._difference = 0.0  #: seconds: our clock minus the service's, at the last answer

    def saw(self, date: str) -> None:
        """Take the time from the `Date` header of an answer; ignore an unreadable one."""
        try:
            moment = parsedate_to_datetime(date).timestamp()
        except (ValueError, OverflowError):
            return
        self._ahead, self._known = moment - self._clock.monotonic(), True
        self._difference = self._clock.time() - moment

    def now(self) -> float:
        """Return the seconds since the epoch; before the first answer, by this machine's clock."""
        if not self._known:
            return self._clock.time()
        if abs(self._difference) > CLOCK_DIFFERENCE and not self._reported:
            self._reported = True
            self._on_difference(self._difference)
        return self._ahead + self._clock.monotonic()

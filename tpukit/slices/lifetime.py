"""A slice's purpose, end and cost. Labels on the slice hold them, so that everybody can see them.

A time is a label's value such as `2026-11-22t19-35-00z`, in UTC. Google Cloud allows up to 63
lower-case letters, digits, hyphens and underscores (Resource Manager documentation, "Requirements
for labels"). Such texts sort by time, also in gcloud's `--filter`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tpukit.errors import BadInput, Fix
from tpukit.google.node_json import MAX_RUN
from tpukit.models import Documented, Slice
from tpukit.slices.naming import label
from tpukit.text import one_line

CREATED, EXPIRES, PURPOSE = "tpukit-created", "tpukit-expires", "tpukit-purpose"
#: A label with the whole seconds that devices may be idle before the guard deletes the slice.
IDLE = "tpukit-idle"
#: A label with the time until which somebody must claim the slice, else it is deleted. Until the
#: slice is READY, the label has the whole seconds from READY to that time.
CLAIM = "tpukit-claim"
#: Seconds for an unclaimed slice to become READY, if the command that waits for it has died.
_READY_SECONDS = 3600
_MOMENT = "%Y-%m-%dt%H-%M-%Sz"


@dataclass(frozen=True)
class Lifetime(Documented):
    """The lifetime of a slice at one moment, from its labels and its time of creation.

    `hours` count from its creation; a stopped slice has used fewer. `seconds_left` is negative
    after the end, and None if no end was set. `cost` is in the currency of the rates. `claim` is
    the end of a slice that nobody has claimed yet, or "".
    """

    _hidden = ("unreadable",)
    purpose: str = ""
    expires: str = ""  #: RFC 3339, like `Slice.created`
    claim: str = ""  #: RFC 3339
    seconds_left: float | None = None
    hours: float | None = None
    cost: float | None = None
    unreadable: str = field(default="", compare=False)  #: a label's value that is no time


def labels(now: float, ttl: float | None, purpose: str) -> Mapping[str, str]:
    """Return the labels for a request made `now`, in seconds since the epoch.

    `ttl` is in seconds; None sets no end. Raises `BadInput` if the purpose has over 63 letters.
    """
    if len(purpose) > 63:
        shown = one_line(purpose)[:20]
        raise BadInput(
            f"the purpose {shown}… is longer than 63 letters", fix=Fix(note="shorten it")
        )
    ends = {} if ttl is None else {EXPIRES: moment(now + ttl)}
    return {CREATED: moment(now), **ends, **({PURPOSE: label(purpose)} if purpose else {})}


def asked(labels: Mapping[str, str]) -> Mapping[str, str]:
    """Return the time to live, idle time and purpose in a request's labels, for comparison."""
    made, ends = (seconds_of(labels.get(key, "")) for key in (CREATED, EXPIRES))
    ttl = "" if made is None or ends is None else f"{ends - made:.0f} s"
    same = {"idle": IDLE, "purpose": PURPOSE, "max run": MAX_RUN}
    return {"ttl": ttl, **{what: labels.get(key, "") for what, key in same.items()}}


def renewed(given: Mapping[str, str], now: float) -> Mapping[str, str]:
    """Return the labels of a request as if it were made `now`, with the same time to live.

    The request may have waited, or this machine's clock may differ from the cloud's.
    """
    made = seconds_of(given.get(CREATED, ""))
    ends = seconds_of(given.get(EXPIRES, ""))
    if made is None:
        return given
    later = {} if ends is None else {EXPIRES: moment(ends + now - made)}
    return {**given, CREATED: moment(now), **later}


def moment(seconds: float) -> str:
    """Return a time, in seconds since the epoch, as a label's value."""
    return time.strftime(_MOMENT, time.gmtime(seconds))


def seconds_of(text: str) -> float | None:
    """Return the seconds since the epoch of such a label's value; None if it is no time."""
    day, _, clock = text.partition("t")
    try:
        return utc_seconds(f"{day}T{clock.replace('-', ':')[:-1]}") if text[-1:] == "z" else None
    except ValueError:
        return None


def utc_seconds(text: str) -> float:
    """Return the seconds since the epoch of `2026-11-22T08:47:03`, UTC; raise `ValueError`."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def span(seconds: float) -> str:
    """Return a length of time, rounded in the largest unit that gives at least two: `5 h`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if round(seconds / size) >= 2:
            return f"{round(seconds / size)} {unit}"
    return f"{round(seconds)} s"


def ago(created: str, now: float) -> str:
    """Return how long ago a time such as 2026-11-22T08:47:03 (UTC) was: `5 min ago`."""
    try:
        seconds = now - utc_seconds(created)
    except ValueError:
        return created
    return f"{span(seconds)} ago" if seconds >= 120 else "just now"


def created_at(slice_: Slice) -> float | None:
    """Return when a slice was made, or else requested, in seconds since the epoch."""
    try:
        return utc_seconds(slice_.created[:19])
    except ValueError:
        return seconds_of(slice_.labels.get(CREATED, ""))


def end_of(slice_: Slice) -> float | None:
    """Return when a slice ends, in seconds since the epoch: by a label, or by Google's limit."""
    ends = [seconds_of(slice_.labels.get(EXPIRES, "")), run_end(slice_), claim_end(slice_)]
    return min((end for end in ends if end is not None), default=None)


def claim_end(slice_: Slice) -> float | None:
    """Return when an unclaimed slice ends, in seconds since the epoch, or None if claimed."""
    text, created = slice_.labels.get(CLAIM, ""), created_at(slice_)
    if text.isdecimal() and created is not None:
        return created + _READY_SECONDS + int(text)
    return seconds_of(text)


def run_end(slice_: Slice) -> float | None:
    """Return when Google deletes a flex-start slice, in seconds since the epoch, or None."""
    created, longest = created_at(slice_), slice_.labels.get(MAX_RUN, "")
    return created + int(longest) if created is not None and longest.isdecimal() else None


def check_run(slices: Iterable[Slice], end: float) -> None:
    """Raise `BadInput` if Google deletes a flex-start slice before a new end."""
    for slice_ in slices:
        latest = run_end(slice_)
        if latest is not None and latest < end:
            raise BadInput(
                f"Google deletes flex-start slice {slice_.name} at "
                f"{time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime(latest))}",
                why="its --max-run-duration cannot be changed",
            )


def lifetime(slice_: Slice, now: float, rates: Mapping[str, float] | None = None) -> Lifetime:
    """Return the lifetime of a slice; `rates` are the prices of a chip for an hour."""
    since, text = created_at(slice_), slice_.labels.get(EXPIRES, "")
    end, claim = end_of(slice_), claim_end(slice_)
    hours = None if since is None else max(0.0, now - since) / 3600
    price = rate(slice_.accelerator_type, slice_.provisioning, rates or {})
    return Lifetime(
        purpose=slice_.labels.get(PURPOSE, ""),
        expires=_written(end),
        claim=_written(claim),
        seconds_left=None if end is None else end - now,
        hours=None if hours is None else round(hours, 2),
        cost=None if hours is None or price is None else round(hours * price, 2),
        unreadable=text if text and seconds_of(text) is None else "",
    )


def _written(seconds: float | None) -> str:
    form = "%Y-%m-%dT%H:%M:%SZ"
    return "" if seconds is None else time.strftime(form, time.gmtime(seconds))


def rates_of(text: str) -> Mapping[str, float]:
    """Return the prices in the setting `rates`, by generation or by generation and capacity."""
    if not text:
        return {}
    from tpukit.accelerators import spelled

    prices: dict[str, float] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        key, _, price = part.partition("=")
        generation, colon, bought = key.partition(":")
        prices[f"{spelled(generation)}{colon}{bought}"] = float(price)
    return prices


def rate(accelerator_type: str, provisioning: str, rates: Mapping[str, float]) -> float | None:
    """Return the price of a whole slice for an hour; None without a rate or a listed type.

    `provisioning` is the way to buy it, as in `Slice.provisioning`.
    """
    generation = accelerator_type.rpartition("-")[0]
    bought = f"{generation}:{provisioning}"
    price = rates.get(bought, rates.get(generation) if provisioning == "on-demand" else None)
    if price is None:
        return None
    from tpukit.accelerators import AcceleratorType, is_listed

    listed = is_listed(accelerator_type)
    return price * AcceleratorType.parse(accelerator_type).chips if listed else None


def ending(slice_: Slice, wanted: Mapping[str, str], now: float) -> Mapping[str, str]:
    """Return the wanted lifetime labels that an existing slice lacks.

    A future end stays, so that running a command again does not extend it. The time for a claim
    begins now if it has not begun. A slice that needs no claim gets no such label.
    """
    within = slice_.labels.get(CLAIM, "")
    claim = {CLAIM: moment(now + int(within))} if within.isdecimal() else {}
    end = seconds_of(slice_.labels.get(EXPIRES, ""))
    keeps = {EXPIRES} if end is not None and end > now else set()
    keeps |= {PURPOSE} & slice_.labels.keys()
    keeps |= {IDLE} if slice_.labels.get(IDLE) == wanted.get(IDLE) else set()
    mine = (EXPIRES, IDLE, PURPOSE)
    return {**claim, **{key: wanted[key] for key in mine if key in wanted and key not in keeps}}

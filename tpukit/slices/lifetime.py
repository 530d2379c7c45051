"""What a slice is for, until when it may live, and what it has used: labels, so that anybody sees.

A moment is a label's value, `2026-11-22t19-35-00z` in UTC: Google Cloud takes lower-case letters,
digits, hyphens and underscores there, 63 at most (Resource Manager documentation, "Requirements for
labels"). As text such moments are in their order, for gcloud's `--filter` too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tpukit.errors import BadInput, Fix
from tpukit.models import Documented, Slice
from tpukit.slices.naming import label
from tpukit.text import one_line

CREATED, EXPIRES, PURPOSE = "tpukit-created", "tpukit-expires", "tpukit-purpose"
#: Whole seconds for which its devices may be idle before its guard ends it.
IDLE = "tpukit-idle"
_MOMENT = "%Y-%m-%dt%H-%M-%Sz"


@dataclass(frozen=True)
class Lifetime(Documented):
    """What the labels of a slice, and its time of creation, say at one moment.

    `hours` are those since it was made; a stopped slice has used fewer. `seconds_left` is below
    zero once the time is up, and None where no end was set. `cost` is in the currency of the rates.
    """

    _hidden = ("unreadable",)
    purpose: str = ""
    expires: str = ""  #: RFC 3339, as `created` of a slice
    seconds_left: float | None = None
    hours: float | None = None
    cost: float | None = None
    unreadable: str = field(default="", compare=False)  #: an end that somebody else has written


def labels(now: float, ttl: float | None, purpose: str) -> Mapping[str, str]:
    """Return the labels of a request that is made `now`, in seconds since the epoch.

    `ttl` is in seconds; None sets no end. Raises `BadInput` for a purpose of more than 63 letters.
    """
    if len(purpose) > 63:
        shown = one_line(purpose)[:20]
        raise BadInput(
            f"the purpose {shown}… is longer than 63 letters", fix=Fix(note="shorten it")
        )
    ends = {} if ttl is None else {EXPIRES: moment(now + ttl)}
    return {CREATED: moment(now), **ends, **({PURPOSE: label(purpose)} if purpose else {})}


def asked(labels: Mapping[str, str]) -> Mapping[str, str]:
    """Return what the labels of a request ask for a slice's life, whenever it was made."""
    made, ends = (seconds_of(labels.get(key, "")) for key in (CREATED, EXPIRES))
    ttl = "" if made is None or ends is None else f"{ends - made:.0f} s"
    return {"ttl": ttl, "idle": labels.get(IDLE, ""), "purpose": labels.get(PURPOSE, "")}


def renewed(given: Mapping[str, str], now: float) -> Mapping[str, str]:
    """Return the labels of a request as if it were made `now`: its time is as long.

    It may have waited, or the clock that it was made by be another than that of the cloud.
    """
    made = seconds_of(given.get(CREATED, ""))
    ends = seconds_of(given.get(EXPIRES, ""))
    if made is None:
        return given
    later = {} if ends is None else {EXPIRES: moment(ends + now - made)}
    return {**given, CREATED: moment(now), **later}


def moment(seconds: float) -> str:
    """Return a moment, in seconds since the epoch, as the value of a label."""
    return time.strftime(_MOMENT, time.gmtime(seconds))


def seconds_of(text: str) -> float | None:
    """Return the seconds since the epoch of such a value, or None for what is none."""
    day, _, clock = text.partition("t")
    try:
        return utc_seconds(f"{day}T{clock.replace('-', ':')[:-1]}") if text[-1:] == "z" else None
    except ValueError:
        return None


def utc_seconds(text: str) -> float:
    """Return the seconds since the epoch of `2026-11-22T08:47:03`, UTC; raise `ValueError`."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def span(seconds: float) -> str:
    """Return a length of time in the largest unit of which there are two: `5 h`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def ago(created: str, now: float) -> str:
    """Return how long ago a time such as 2026-11-22T08:47:03 (UTC) was: `5 min ago`."""
    try:
        seconds = now - utc_seconds(created)
    except ValueError:
        return created
    return f"{span(seconds)} ago" if seconds >= 120 else "just now"


def created_at(found: Slice) -> float | None:
    """Return when the API made a slice, in seconds since the epoch; else when it was asked for."""
    try:
        return utc_seconds(found.created[:19])
    except ValueError:
        return seconds_of(found.labels.get(CREATED, ""))


def lifetime(found: Slice, now: float, rates: Mapping[str, float] | None = None) -> Lifetime:
    """Return the lifetime of a slice; `rates` are the prices of a chip for an hour."""
    since, text = created_at(found), found.labels.get(EXPIRES, "")
    end = seconds_of(text)
    hours = None if since is None else max(0.0, now - since) / 3600
    rate = _rate(found, rates or {})
    return Lifetime(
        purpose=found.labels.get(PURPOSE, ""),
        expires="" if end is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(end)),
        seconds_left=None if end is None else end - now,
        hours=None if hours is None else round(hours, 2),
        cost=None if hours is None or rate is None else round(hours * rate, 2),
        unreadable=text if end is None else "",
    )


def rates_of(text: str) -> Mapping[str, float]:
    """Return the prices of the setting `rates` by generation, or by generation and capacity."""
    if not text:
        return {}
    from tpukit.accelerators import spelled

    found: dict[str, float] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        key, _, price = part.partition("=")
        generation, colon, bought = key.partition(":")
        found[f"{spelled(generation)}{colon}{bought}"] = float(price)
    return found


def _rate(found: Slice, rates: Mapping[str, float]) -> float | None:
    """Return the price of the whole slice for an hour; a type that our table lacks has none."""
    generation = found.accelerator_type.rpartition("-")[0]
    bought = f"{generation}:{found.provisioning}"
    price = rates.get(bought, rates.get(generation) if found.provisioning == "on-demand" else None)
    if price is None:
        return None
    from tpukit.accelerators import AcceleratorType, is_listed

    listed = is_listed(found.accelerator_type)
    return price * AcceleratorType.parse(found.accelerator_type).chips if listed else None


def ending(found: Slice, wanted: Mapping[str, str], now: float) -> Mapping[str, str]:
    """Return those of the wanted labels that a slice that is there already lacks.

    An end that lies ahead stays: a command typed again puts nothing off.
    """
    end = seconds_of(found.labels.get(EXPIRES, ""))
    keeps = {EXPIRES} if end is not None and end > now else set()
    keeps |= {PURPOSE} & found.labels.keys()
    keeps |= {IDLE} if found.labels.get(IDLE) == wanted.get(IDLE) else set()
    mine = (EXPIRES, IDLE, PURPOSE)
    return {key: wanted[key] for key in mine if key in wanted and key not in keeps}

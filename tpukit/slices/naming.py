"""What a slice may be called, and the labels that say whose it is and which call made it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace

from tpukit.errors import BadInput, Fix
from tpukit.models import Slice, SliceRequest
from tpukit.text import one_line

MANAGED, NONCE, OWNER = "tpukit-managed", "tpukit-nonce", "tpukit-owner"
#: On a slice that a search for capacity made: one that comes up beside another of its name goes.
SEARCH = "tpukit-search"
#: The labels and tags that tpukit itself gives to slices start so.
OURS = "tpukit-"

#: Node ids as the API takes them: RFC 1035 labels.
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
#: Ids of queued resources as the API takes them (queuedResources.create), less those that the path
#: of a URL does not carry unchanged, with a % or of dots alone, and those that look like a flag.
_REQUEST_NAME = re.compile(r"(?!-|\.+$)[A-Za-z0-9_.~+-]+")


def check_request_name(name: str) -> str:
    """Return the name of a queued resource, which others may have made; else raise `BadInput`."""
    if _REQUEST_NAME.fullmatch(name):
        return name
    raise BadInput(
        f"{one_line(name)[:80]!r} is not the name of a queued resource",
        why="it is of letters, digits and the signs _ . ~ + and, after the first, -",
        fix=Fix.command("tpukit", "queue", "list", note="shows those there are"),
    )


def check_name(name: str) -> str:
    """Return `name` where the API would take it, else raise `BadInput`."""
    if _NAME.fullmatch(name):
        return name
    shown = one_line(name)[:80]
    suggestion = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-0123456789")[:63].strip("-")
    raise BadInput(
        f"{shown!r} is not a slice name",
        why="a name is 1 to 63 lower-case letters, digits and hyphens, and starts with a letter",
        fix=Fix(note=f"for example: {suggestion}") if suggestion else None,
    )


def default_name(account: str, accelerator_type: str) -> str:
    """Return the name for an account and type, by which a command typed again finds its slice."""
    user = account.partition("@")[0].lower()
    safe = re.sub(r"[^a-z0-9]+", "-", user).strip("-0123456789") or "user"
    return f"{safe[: 62 - len(accelerator_type)].strip('-')}-{accelerator_type}"


def label(text: str) -> str:
    """Return text as a label value: lower case letters, digits, hyphens and underscores."""
    return re.sub(r"[^a-z0-9_-]", "-", text.lower())[:63]


def owner_label(account: str) -> str:
    """Return the label of what an account owns; two accounts never share one.

    An account that is no label as it stands gets a digest: `ada_example-com-1f2e3d4c`.
    """
    text = account.lower()
    if label(text) == text:
        return text
    user, _, domain = text.partition("@")
    stem = label(user).replace("_", "-") + (f"_{label(domain)}" if domain else "")
    return f"{stem[:54]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def is_owner(owner: str, labels: Mapping[str, str]) -> bool:
    """Return True if these labels name `owner`, in today's form or unmistakably in the former one.

    The former label had no digest. It is unmistakable if the user's name is of letters and digits.
    """
    match = re.fullmatch(r"([a-z0-9]+)_([a-z0-9-]+)-[0-9a-f]{8}", owner)
    former = f"{match[1]}-{match[2]}" if match and len(owner) < 63 else owner
    return labels.get(OWNER, "") in {owner, former} - {""}


def owner(slice_: Slice) -> str:
    """Return the label that says whose a slice is; empty where tpukit did not make it."""
    return slice_.labels.get(OWNER, "")


def labelled(request: SliceRequest, whose: str, nonce: str) -> SliceRequest:
    """Return the request with the labels that say who made the slice, and by which call."""
    ours = {MANAGED: "1", OWNER: owner_label(whose), NONCE: nonce}
    return replace(request, labels={**request.labels, **ours})

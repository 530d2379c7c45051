"""The names of slices, and the labels for their owner and for the call that made them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from tpukit.errors import BadInput, Fix
from tpukit.models import HOSTS as HOSTS
from tpukit.models import MANAGED as MANAGED
from tpukit.models import NONCE as NONCE
from tpukit.models import OWNER as OWNER
from tpukit.models import Slice, SliceRequest
from tpukit.text import one_line

#: The label of slices that a search made. Searches delete slices only while it says `LOOKING`.
SEARCH = "tpukit-search"
LOOKING, FOUND = "looking", "found"
#: The label of slices whose gang is not complete; they are deleted if it cannot be completed.
GANG = "tpukit-gang"
#: The prefix of labels and tags that tpukit itself gives to slices.
OURS = "tpukit-"

#: Node ids as the API takes them: RFC 1035 labels.
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
#: Ids of queued resources that the API accepts (queuedResources.create). Ids with % or only dots
#: would change in a URL's path, and ids that start with a hyphen look like flags.
_REQUEST_NAME = re.compile(r"(?!-|\.+$)[A-Za-z0-9_.~+-]+")


def check_request_name(name: str) -> str:
    """Return the name if it is valid for a queued resource, else raise `BadInput`."""
    if _REQUEST_NAME.fullmatch(name):
        return name
    raise BadInput(
        f"{one_line(name)[:80]!r} is not the name of a queued resource",
        why="a name has letters, digits, _ . ~ + and, after the first sign, -",
        fix=Fix.command("tpukit", "queue", "list", note="shows the queued resources"),
    )


def check_name(name: str) -> str:
    """Return `name` if the API accepts it for a slice, else raise `BadInput`."""
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
    """Return the default name for an account and type; it is always the same."""
    user = account.partition("@")[0].lower()
    safe = re.sub(r"[^a-z0-9]+", "-", user).strip("-0123456789") or "user"
    return f"{safe[: 62 - len(accelerator_type)].strip('-')}-{accelerator_type}"


def label(text: str) -> str:
    """Return text as a label value: lower case letters, digits, hyphens and underscores."""
    return re.sub(r"[^a-z0-9_-]", "-", text.lower())[:63]


def owner_label(account: str) -> str:
    """Return the owner label for an account; it is different for each account.

    If the account is no valid label, a digest is added: `ada_example-com-1f2e3d4c`.
    """
    text = account.lower()
    if label(text) == text:
        return text
    import hashlib

    user, _, domain = text.partition("@")
    stem = label(user).replace("_", "-") + (f"_{label(domain)}" if domain else "")
    return f"{stem[:54]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def is_owner(owner: str, labels: Mapping[str, str]) -> bool:
    """Return True if these labels name `owner`, in the current form or in the former one.

    The former label had no digest. It counts only if the user's name has only letters and digits,
    because it is ambiguous otherwise.
    """
    match = re.fullmatch(r"([a-z0-9]+)_([a-z0-9-]+)-[0-9a-f]{8}", owner)
    former = f"{match[1]}-{match[2]}" if match and len(owner) < 63 else owner
    return labels.get(OWNER, "") in {owner, former} - {""}


def lacks_group(slice_: Slice) -> bool:
    """Return True for what is left of a slice of Compute Engine whose group of machines is gone."""
    return slice_.api == "compute" and HOSTS in slice_.labels and not slice_.operation


def is_unfinished(slice_: Slice) -> bool:
    """Return True if a search made a slice, and nobody has got or used it yet."""
    return slice_.labels.get(SEARCH) == LOOKING


def owner(slice_: Slice) -> str:
    """Return a slice's owner label; empty if tpukit did not make the slice."""
    return slice_.labels.get(OWNER, "")


def labelled(request: SliceRequest, whose: str, nonce: str) -> SliceRequest:
    """Return the request with the labels of tpukit, the owner and the call (nonce)."""
    return replace(request, labels={**request.labels, **owned(whose, nonce)})


def owned(whose: str, nonce: str) -> Mapping[str, str]:
    """Return the labels of tpukit for an owner and a call (nonce)."""
    return {MANAGED: "1", OWNER: owner_label(whose), NONCE: nonce}

"""Our key in the metadata of a slice: from its start, or added later."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from tpukit.access import ssh_rule
from tpukit.access.context import Context
from tpukit.clock import Deadline, polls
from tpukit.cloud.provider import Doubtful, SliceProvider
from tpukit.errors import DeadlinePassed
from tpukit.models import Slice, SliceRequest
from tpukit.remote.connection.keys import KeyPair


def with_access(request: SliceRequest, context: Context) -> SliceRequest:
    """Return the request with our key in the slice's own metadata, and the tag of its rule."""
    given = request.metadata.get("ssh-keys", "").splitlines()
    keys = "\n".join([*given, key_line(context.user, context.key)])
    tag = ssh_rule.tag(request.project, request.zone, request.name)
    return replace(
        request, metadata={**request.metadata, "ssh-keys": keys}, tags=(*request.tags, tag)
    )


def install_key(
    provider: SliceProvider, found: Slice, user: str, key: KeyPair, deadline: Deadline
) -> bool:
    """Make sure that the slice's metadata admits our key for `user`; return whether it was added.

    The API has no etag, so a key of another user's that is written at the same time can replace
    ours: the metadata is read again right before each write, and after it until the key was seen
    twice, a pause apart. That outlasts whoever had read the metadata before our write.

    Raises `DeadlinePassed` where the key is not in the metadata yet.
    """
    line = key_line(user, key)
    if line in _keys(found):
        return False
    provider.load_writes()  # seconds on a busy machine, in which another's key would be lost
    seen = 0
    for _ in polls(deadline):
        current = provider.get(found.zone, found.name)
        seen = seen + 1 if line in _keys(current) else 0
        if seen == 2:
            return True
        if not seen:
            _write_key(provider, current, line)
    raise DeadlinePassed(f"the SSH key was not accepted into the metadata of slice {found.name}")


def key_line(user: str, key: KeyPair) -> str:
    """Return the entry of the `ssh-keys` metadata: `user:ssh-ed25519 AAAA… comment`."""
    return f"{user}:{key.public}"


def _keys(found: Slice) -> list[str]:
    return found.metadata.get("ssh-keys", "").splitlines()


def _write_key(provider: SliceProvider, current: Slice, line: str) -> None:
    """Ask once, whatever comes of it: the caller looks again before it asks again."""
    merged = {**current.metadata, "ssh-keys": "\n".join([*_keys(current), line])}
    with contextlib.suppress(Doubtful):
        provider.replace_metadata(current.zone, current.name, merged)

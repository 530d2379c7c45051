"""Put our SSH key into the metadata of a slice, at its creation or later."""

from __future__ import annotations

from dataclasses import replace

from tpukit.access import ssh_rule
from tpukit.access.context import Context
from tpukit.clock import Deadline
from tpukit.google.provider import SliceProvider
from tpukit.models import Slice, SliceRequest
from tpukit.slices.update import KEYS, Edits, update
from tpukit.ssh.keys import KeyPair


def with_access(request: SliceRequest, context: Context) -> SliceRequest:
    """Return the request with our key in the slice's own metadata, and the tag of its rule."""
    given = request.metadata.get(KEYS, "").splitlines()
    keys = "\n".join(dict.fromkeys([*given, key_line(context.user, context.key)]))
    tag = ssh_rule.tag(request.project, request.zone, request.name)
    return replace(request, metadata={**request.metadata, KEYS: keys}, tags=(*request.tags, tag))


def install_key(
    provider: SliceProvider, slice_: Slice, user: str, key: KeyPair, deadline: Deadline
) -> bool:
    """Add our key for `user` to the slice's metadata if it is missing; return True if it was.

    Raises the errors of `update`, such as `DeadlinePassed` if the key is not there yet.
    """
    edits = Edits(keys=(key_line(user, key),), ours=True)
    return bool(update(provider, slice_, edits, deadline=deadline).changed)


def key_line(user: str, key: KeyPair) -> str:
    """Return the entry of the `ssh-keys` metadata: `user:ssh-ed25519 AAAA… comment`."""
    return f"{user}:{key.public}"

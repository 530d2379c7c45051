"""What the Compute Engine API says of a disk, and what it means."""

from __future__ import annotations

import pytest
from support.local_cloud import Cloud, json_reply, scripted

from tpukit.errors import TpukitError
from tpukit.google.compute_disks import ComputeDisks

SOURCE = "projects/p/zones/z/disks/data"
GONE = {"error": {"code": 404, "message": "The resource was not found", "errors": []}}


def test_a_disk_is_unused_that_is_there_and_that_no_machine_has(cloud: Cloud) -> None:
    for status, answer, size in (
        (200, {"sizeGb": "10"}, 10),
        (200, {"sizeGb": "10", "users": []}, 10),
        (200, {"sizeGb": "10", "users": ["projects/p/zones/z/instances/vm"]}, None),
        (404, GONE, None),
    ):
        with scripted(json_reply(status, answer)) as server:
            assert ComputeDisks(cloud.session, server.url).unused(SOURCE) == size
        assert server.seen == [("GET", f"/compute/v1/{SOURCE}")]
    with (
        scripted(json_reply(200, {"sizeGb": "many"})) as server,
        pytest.raises(TpukitError, match="could not be read"),
    ):
        ComputeDisks(cloud.session, server.url).unused(SOURCE)

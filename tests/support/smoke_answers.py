"""What the smoke program of a healthy v3-8 answers."""

from __future__ import annotations

import json

from tpukit.smoke.judge import DIGEST

RIGHT = {
    "framework": "jax",
    "versions": {"jax": "0.10.2", "python": "3.11.7"},
    "emulated": 0,
    "platform": "tpu",
    "device_kind": "TPU v3",
    "devices": 8,
    "global_devices": 8,
    "process": 0,
    "processes": 1,
    "digests": [[DIGEST, DIGEST]] * 8,
    "global_sum": 36.0,
    "indices": [*range(8)],
    "memory_bytes": [16 * 2**30 - 2**28] * 8,
    "missing": [],
    "ring": [8, 1, 2, 3, 4, 5, 6, 7],
}
#: What it measures at levels 2 and 3.
BENCH = {
    "devices": {
        what: [[figure, figure]] * 8
        for what, figure in {
            "matmul": 55.0, "hbm": 380.0, "host-to-device": 9.0, "device-to-host": 8.0,
        }.items()
    },
    "right": {
        what: [True] * 8 for what in ("matmul", "hbm", "host-to-device", "device-to-host")
    },
    "all_reduce": [[64 << 20, 160.0, True]],
    "links": [[0, 2, 90.0, True]],
}  # fmt: skip
SOAK = {
    "window_seconds": 10.0,
    "rates": [[55.0] * 8] * 6,
    "wrong": [0] * 8,
    "flipped": [0] * 8,
    "metrics": {},
}


def line(**changes: object) -> bytes:
    """Return the line that the program prints, with some of its values changed."""
    return b"TPUKIT-SMOKE %s\n" % json.dumps({**RIGHT, **changes}).encode()

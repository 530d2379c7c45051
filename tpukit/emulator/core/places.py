"""The project and the zone that `emulator env` names."""

from __future__ import annotations

#: Every other project id works too.
PROJECT = "tpukit-local"
#: The only invented zone, which offers every accelerator type. The other zones offer the types that
#: the real service offers there.
ZONE = "emulator-local1-a"

"""The project and the zone that `emulator env` names."""

from __future__ import annotations

#: Every other project exists too.
PROJECT = "tpukit-local"
#: The only invented zone: it offers every accelerator type. In all others a type is offered where
#: the real service offers it.
ZONE = "emulator-local1-a"

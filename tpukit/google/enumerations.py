"""The enumerations of the Cloud TPU API by number: its JSON may have a number or a word.

Source: google/cloud/tpu/v2/cloud_tpu.proto; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping

NODE_STATE: Mapping[int, str] = {
    0: "STATE_UNSPECIFIED",
    1: "CREATING",
    2: "READY",
    3: "RESTARTING",
    4: "REIMAGING",
    5: "DELETING",
    6: "REPAIRING",
    8: "STOPPED",
    9: "STOPPING",
    10: "STARTING",
    11: "PREEMPTED",
    12: "TERMINATED",
    13: "HIDING",
    14: "HIDDEN",
    15: "UNHIDING",
    16: "UNKNOWN",
}
NODE_HEALTH: Mapping[int, str] = {
    0: "HEALTH_UNSPECIFIED",
    1: "HEALTHY",
    3: "TIMEOUT",
    4: "UNHEALTHY_TENSORFLOW",
    5: "UNHEALTHY_MAINTENANCE",
}
DISK_MODE: Mapping[int, str] = {0: "DISK_MODE_UNSPECIFIED", 1: "READ_WRITE", 2: "READ_ONLY"}
QUEUED_STATE: Mapping[int, str] = {
    0: "STATE_UNSPECIFIED",
    1: "CREATING",
    2: "ACCEPTED",
    3: "PROVISIONING",
    4: "FAILED",
    5: "DELETING",
    6: "ACTIVE",
    7: "SUSPENDING",
    8: "SUSPENDED",
    9: "WAITING_FOR_RESOURCES",
}
INITIATOR: Mapping[int, str] = {0: "STATE_INITIATOR_UNSPECIFIED", 1: "USER", 2: "SERVICE"}

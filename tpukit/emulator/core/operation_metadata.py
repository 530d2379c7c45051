"""The message type of a Cloud TPU operation's metadata, which a user of the emulator chooses."""

from __future__ import annotations

from typing import Literal, get_args

#: `common`: Cloud TPU's answers of 2025 in GoogleCloudPlatform/k8s-config-connector
#: (mockgcp/mocktpu/testdata/node/crud/_http.log). `tpu`: the annotation on CreateNode in
#: google/cloud/tpu/v2/cloud_tpu.proto, and the only one that google-cloud-tpu reads over REST.
OperationMetadata = Literal["common", "tpu"]
OPERATION_METADATA: tuple[OperationMetadata, ...] = get_args(OperationMetadata)
DEFAULT: OperationMetadata = "common"
#: This environment variable names the type if the call that starts an emulator does not.
VARIABLE = "TPUKIT_EMULATOR_OPERATION_METADATA"


def metadata_type(kind: OperationMetadata, version: str) -> str:
    """Return the `@type` of an operation's metadata in an API version ("v2")."""
    package = "common" if kind == "common" else f"tpu.{version}"
    return f"type.googleapis.com/google.cloud.{package}.OperationMetadata"

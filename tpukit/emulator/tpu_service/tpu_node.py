"""The TPU Node architecture of API v1: it refuses creates, and its lists are empty.

Slices of API v2 are not among its nodes, so an old script never finds any.
"""

from __future__ import annotations

from tpukit.emulator.core.api_errors import ApiError, Json, not_found
from tpukit.emulator.core.service_context import Call, listing
from tpukit.emulator.tpu_service.catalogue import Catalogue

#: TensorFlow versions of the names `tpu-vm-tf-…` in the Cloud TPU page "TPU software versions".
_VERSIONS = ("2.16.1", "2.17.0")


class TpuNodes:
    """The methods that `gcloud compute tpus create`, without `tpu-vm`, calls."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def create(self, call: Call) -> Json:
        self._catalogue.check_zone(call)
        # Source: hashicorp/terraform-provider-google#21292
        raise ApiError(
            "FAILED_PRECONDITION",
            "Your request to provision TPU Node has been denied. Please migrate to TPU VM "
            "Architecture or contact Cloud TPU team to gain TPU Node access. "
            "https://cloud.google.com/tpu/docs/system-architecture-tpu-vm#from-tpu-node-to-tpu-vm",
        )

    def list(self, call: Call) -> Json:
        self._catalogue.prefix(call, "nodes")
        return listing(call, "nodes", {})

    def find(self, call: Call) -> Json:
        """Raise NOT_FOUND for every method on a node."""
        self._catalogue.check_zone(call)
        raise not_found(f"{call.parent}/nodes/{call.path['node']}")

    def list_versions(self, call: Call) -> Json:
        self._catalogue.prefix(call, "tensorflowVersions")
        versions = [_version(call, version) for version in _VERSIONS]
        return listing(call, "tensorflowVersions", {v["name"]: v for v in versions})

    def get_version(self, call: Call) -> Json:
        self._catalogue.check_zone(call)
        if call.path["runtime"] not in _VERSIONS:
            raise not_found(f"{call.parent}/tensorflowVersions/{call.path['runtime']}")
        return _version(call, call.path["runtime"])


def _version(call: Call, version: str) -> Json:
    return {"name": f"{call.parent}/tensorflowVersions/{version}", "version": version}

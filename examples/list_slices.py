"""List the slices of a project with google-cloud-tpu, Google's own client.

Against the emulator: eval "$(tpukit emulator env)"; python examples/list_slices.py
"""

import os
from pathlib import Path

from google.cloud import tpu_v2
from google.cloud.tpu_v2.services.tpu.transports import TpuRestTransport
from google.oauth2.credentials import Credentials


def client() -> tpu_v2.TpuClient:
    """Return a client of the emulator that the environment names, or of Cloud TPU."""
    endpoint = os.environ.get("CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU")
    if not endpoint:
        return tpu_v2.TpuClient(transport="rest")
    scheme, _, host = endpoint.rstrip("/").partition("://")
    token = Path(os.environ["CLOUDSDK_AUTH_ACCESS_TOKEN_FILE"]).read_text().strip()
    transport = TpuRestTransport(host=host, url_scheme=scheme, credentials=Credentials(token))
    return tpu_v2.TpuClient(transport=transport)


def main() -> None:
    project = os.environ["CLOUDSDK_CORE_PROJECT"]
    # The zone "-" stands for all of them.
    for node in client().list_nodes(parent=f"projects/{project}/locations/-", timeout=20):
        _, _, _, zone, _, name = node.name.split("/")
        print(f"{name}\t{zone}\t{node.accelerator_type}\t{node.state.name}")


if __name__ == "__main__":
    main()

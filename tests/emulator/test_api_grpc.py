"""gRPC: not served until it is asked for; TLS shows one identity for good."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from google.cloud.tpu_v2 import OperationMetadata
from google.longrunning import operations_pb2

from emulator.conftest import PLACE
from tpukit.emulator.api.tls import identity
from tpukit.emulator.core.operation_metadata import OPERATION_METADATA, metadata_type


def test_grpc_and_google_s_types_are_not_loaded_until_grpc_is_opened():
    program = (
        "import sys, tempfile, pathlib\n"
        "from tpukit.emulator.api.http_server import build_server\n"
        "from tpukit.emulator.workers.paper_host import PaperHost\n"
        "server = build_server(pathlib.Path(tempfile.mkdtemp()), None, PaperHost)\n"
        "print(sorted({'grpc', 'google', 'cryptography'} & set(sys.modules)))\n"
        "server.shutdown()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_listener_stays_on_its_port(api):
    first = api.call("POST", "/_emulator/v1/grpc", {})[1]
    assert first["address"].startswith("127.0.0.1:")
    assert api.call("POST", "/_emulator/v1/grpc", {})[1] == first
    secure = api.call("POST", "/_emulator/v1/grpc", {"secure": True})[1]
    assert secure["address"] != first["address"]


@pytest.mark.parametrize("body", [{"secure": "yes"}, {"port": "x"}, {"port": -1}, {"port": True}])
def test_a_listener_that_cannot_be_is_refused(api, body):
    assert api.call("POST", "/_emulator/v1/grpc", body)[0] == 400


@pytest.mark.parametrize("kind", OPERATION_METADATA)
@pytest.mark.parametrize("version", ["v2", "v2alpha1"])
def test_an_operation_keeps_its_version_if_all_have_one_name(emulators, version, kind):
    api = emulators.start(operation_metadata=kind)
    body = {"acceleratorType": "v3-8", "runtimeVersion": "tpu-vm-base"}
    _, begun = api.call("POST", f"/{version}/{PLACE}/nodes?nodeId=n", body)
    api.advance(1000)
    address = api.call("POST", "/_emulator/v1/grpc", {})[1]["address"]
    with grpc.insecure_channel(address) as channel:
        get = channel.unary_unary(
            "/google.longrunning.Operations/GetOperation",
            operations_pb2.GetOperationRequest.SerializeToString,
            operations_pb2.Operation.FromString,
        )
        asked = operations_pb2.GetOperationRequest(name=begun["name"])
        found = get(asked, metadata=[("authorization", f"Bearer {api.token}")], timeout=60)
    assert found.response.type_url == f"type.googleapis.com/google.cloud.tpu.{version}.Node"
    assert found.metadata.type_url == metadata_type(kind, version)
    assert found.metadata.type_url == begun["metadata"]["@type"]
    read = OperationMetadata.pb().FromString(found.metadata.value)
    assert (read.verb, read.api_version) == ("create", version)


def test_a_port_that_is_taken_is_an_error_and_not_a_crash(api):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, answer = api.call("POST", "/_emulator/v1/grpc", {"port": port})
    assert (status, answer["error"]["status"]) == (503, "UNAVAILABLE")


def test_the_identity_is_that_of_localhost_and_survives_a_restart(emulators):
    api = emulators.start()
    opened = api.call("POST", "/_emulator/v1/grpc", {"secure": True})[1]
    authority = Path(opened["authority"]).read_bytes()
    port = int(opened["address"].rpartition(":")[2])
    trusting = ssl.create_default_context(cafile=opened["authority"])
    for name in ("localhost", "127.0.0.1"):
        with (
            socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
            trusting.wrap_socket(plain, server_hostname=name) as secure,
        ):
            assert secure.version() in ("TLSv1.2", "TLSv1.3")
    strange = ssl.create_default_context()
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        strange.wrap_socket(plain, server_hostname="localhost")
    emulators.stop()
    again = emulators.start().call("POST", "/_emulator/v1/grpc", {"secure": True})[1]
    assert Path(again["authority"]).read_bytes() == authority


def test_an_identity_that_newer_clients_refuse_is_made_anew(tmp_path):
    certificate = identity(tmp_path / "tls").certificate
    made = x509.load_pem_x509_certificate(certificate.read_bytes())
    key = ec.generate_private_key(ec.SECP256R1())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    without_signer = (
        x509.CertificateBuilder()
        .subject_name(made.subject)
        .issuer_name(made.issuer)
        .public_key(key.public_key())
        .serial_number(made.serial_number)
        .not_valid_before(made.not_valid_before_utc)
        .not_valid_after(made.not_valid_after_utc)
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    before = without_signer.public_bytes(serialization.Encoding.PEM)
    certificate.write_bytes(before)
    identity(tmp_path / "tls")
    assert certificate.read_bytes() != before


def test_an_identity_that_was_half_written_is_made_anew(tmp_path):
    directory = tmp_path / "tls"
    certificate = identity(directory).certificate
    before = certificate.read_bytes()
    certificate.unlink()
    identity(directory)
    after = certificate.read_bytes()
    assert after != before
    identity(directory)
    assert certificate.read_bytes() == after

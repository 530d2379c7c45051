"""`Emulator`: an emulator for the time of a block, for programs and tests that are not ours."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from tpukit.emulator.control_client import EmulatorClient
from tpukit.emulator.core.operation_metadata import OperationMetadata
from tpukit.emulator.core.places import PROJECT, ZONE
from tpukit.emulator.process import daemon
from tpukit.errors import BadInput, Fix, TpukitError
from tpukit.text import one_line

if TYPE_CHECKING:
    from google.cloud.tpu_v2 import TpuClient

__all__ = ["Emulator", "cleared"]

#: What leads tpukit, gcloud and Google's clients somewhere, and what of it only says how to run.
_CLIENTS = ("TPUKIT_", "CLOUDSDK_", "GOOGLE_", "GCE_METADATA_", "GCLOUD_PROJECT")
_HARMLESS = ("CLOUDSDK_PYTHON", "CLOUDSDK_ROOT_DIR")
#: What `workers` may be, and the engine that makes them.
_ENGINES = {"paper": "paper", "ssh": "auto"}


class Emulator(EmulatorClient):
    """An emulator of its own, which runs from here until `close` or the end of a `with` block.

    It is a process on free ports of 127.0.0.1 with a directory for its files; both go with it, and
    also when the program that made it is killed. Any number may run at once.

    Attributes:
        url: where the APIs answer, `http://127.0.0.1:PORT`.
        token: the bearer token that every request needs.
        directory: its files until it ends; the log is `state/emulator/emulator.log`.
        variables: what leads gcloud, tpukit and programs that read these here.
    """

    def __init__(
        self,
        workers: Literal["paper", "ssh"] = "paper",
        *,
        create_seconds: float = 0.0,
        port: int = 0,
        operation_metadata: OperationMetadata | None = None,
    ) -> None:
        """Start it; a create takes `create_seconds` of its clock, all else in proportion.

        `workers` are "paper" (addresses and keys, for calls of the API) or "ssh" (each an SSH
        server). `port` 0 takes a free one. `operation_metadata` is the message type of the metadata
        of the Cloud TPU API's operations: "common" is the recorded type, "tpu" the one that
        google-cloud-tpu reads over REST; without it, the environment variable
        TPUKIT_EMULATOR_OPERATION_METADATA decides. Raises `BadInput` for other values or a port
        that is taken, and `TpukitError` if it does not start; nothing is left then.
        """
        if workers not in _ENGINES:
            raise BadInput(
                f"no workers {one_line(str(workers))}",
                fix=Fix(note=f"one of {', '.join(_ENGINES)}"),
            )
        self.directory = Path(tempfile.mkdtemp(prefix="tpukit-emulator-"))
        # It ends once nobody holds the other end of this pipe: with this process at the latest.
        ended, lifeline = os.pipe()
        self._lifeline = os.fdopen(lifeline, "wb")
        try:
            owner = daemon.Owner(ended, self.directory)
            engine = _ENGINES[workers]
            found = daemon.start(
                self._home,
                create_seconds,
                port,
                engine=engine,
                owner=owner,
                operation_metadata=operation_metadata or "",
            )
            self._guardian = found.guardian
            super().__init__(found.url, found.token)
            self.variables: Mapping[str, str] = {
                **daemon.environment(self._home),
                "CLOUDSDK_CONFIG": str(self.directory / "gcloud"),
                "TPUKIT_HOME": str(self.directory),
            }
        except BaseException as error:
            self._leave_nothing()
            if isinstance(error, TpukitError):
                error.fix = None  # it would name the log, which is gone
            raise
        finally:
            os.close(ended)
        self._open = True

    @property
    def _home(self) -> Path:
        """Where tpukit looks for it with this `TPUKIT_HOME`: `tpukit emulator …` drives it too."""
        return self.directory / "state" / "emulator"

    @property
    def env(self) -> dict[str, str]:
        """For `subprocess.run(env=…)`: this program's environment, with clients led here alone.

        No configuration of gcloud or tpukit and no credentials of this account are in it.
        """
        return {**cleared(os.environ), **self.variables}

    @property
    def project(self) -> str:
        """The project that `env` names; every other one exists too."""
        return PROJECT

    @property
    def zone(self) -> str:
        """The zone that `env` names, which offers every accelerator type."""
        return ZONE

    def tpu_client(self) -> TpuClient:
        """Return google-cloud-tpu's client of API version v2, over gRPC, led here.

        gRPC is what `TpuClient()` uses, and carries metadata of any type: over REST the library
        raises `ParseError` for the answer to a write whose `operation_metadata` is "common".
        """
        import grpc
        from google.auth.transport.grpc import AuthMetadataPlugin
        from google.cloud.tpu_v2 import TpuClient
        from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport
        from google.oauth2.credentials import Credentials

        opened = self.call("POST", "grpc", {"secure": True})
        trusted = grpc.ssl_channel_credentials(Path(opened["authority"]).read_bytes())
        plugin = AuthMetadataPlugin(Credentials(self.token), None)
        credentials = grpc.composite_channel_credentials(
            trusted, grpc.metadata_call_credentials(plugin)
        )
        options = [("grpc.enable_http_proxy", 0)]  # a proxy cannot reach this machine
        channel = grpc.secure_channel(opened["address"], credentials, options)
        return TpuClient(transport=TpuGrpcTransport(channel=channel))

    def reset(self) -> None:
        """Begin anew: of all that was made or changed nothing is left but ports and the token.

        What gcloud and tpukit have kept where `env` leads them goes too.
        """
        super().reset()
        for path in (*self.directory.iterdir(), *self._home.parent.iterdir()):
            if path not in (self._home, self._home.parent):
                shutil.rmtree(path, ignore_errors=True)
                if path.is_file():
                    path.unlink()

    def close(self) -> None:
        """End it and all that its workers run, and remove its files. A second time does nothing."""
        if self._open:
            self._open = False
            try:
                daemon.stop(self._home)
            finally:
                self._leave_nothing()
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(self._guardian, os.WNOHANG)

    def _leave_nothing(self) -> None:
        self._lifeline.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def cleared(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that lead no client of Google's and no tpukit anywhere."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(_CLIENTS) or name.startswith(_HARMLESS)
    }

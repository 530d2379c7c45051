"""`Emulator`: an emulator that runs for one block, for other people's programs and tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
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

#: Prefixes of the variables that configure tpukit, gcloud and Google's clients, and the variables
#: among them that only say how to run gcloud.
_CLIENTS = ("TPUKIT_", "CLOUDSDK_", "GOOGLE_", "GCE_METADATA_", "GCLOUD_PROJECT")
_HARMLESS = ("CLOUDSDK_PYTHON", "CLOUDSDK_ROOT_DIR")
#: The values of `workers`, and the engine for each.
_ENGINES = {"paper": "paper", "ssh": "auto"}


class Emulator(EmulatorClient):
    """A private emulator, which runs until `close` or the end of a `with` block.

    It is a process with free ports of 127.0.0.1 and a directory for its files. Both end with it,
    even when the program that made it is killed. Any number may run at once.

    Attributes:
        url: the address of the APIs, `http://127.0.0.1:PORT`.
        token: the bearer token that every request needs.
        directory: the directory of its files; the log is `state/emulator/emulator.log`.
        variables: the environment variables that point gcloud and tpukit at it.
    """

    def __init__(
        self,
        workers: Literal["paper", "ssh"] = "paper",
        *,
        create_seconds: float = 0.0,
        port: int = 0,
        operation_metadata: OperationMetadata | None = None,
    ) -> None:
        """Start it; a create takes `create_seconds` of its clock, other changes in proportion.

        `workers` are "paper" (addresses and keys, enough for calls of the API) or "ssh" (real SSH
        servers). `port` 0 takes a free one. `operation_metadata` is the message type of the
        metadata in Cloud TPU operations: "common" is the recorded type, "tpu" the only one that
        google-cloud-tpu reads over REST; without it, the environment variable
        TPUKIT_EMULATOR_OPERATION_METADATA decides.

        Raises `BadInput` for other values or a port in use, and `TpukitError` if the emulator does
        not start. An emulator that fails to start leaves nothing behind.
        """
        if workers not in _ENGINES:
            raise BadInput(
                f"unknown workers: {one_line(str(workers))}",
                fix=Fix(note=f"one of {', '.join(_ENGINES)}"),
            )
        self.directory = Path(tempfile.mkdtemp(prefix="tpukit-emulator-"))
        # The emulator ends when this process closes the other end of the pipe, or dies.
        ended, lifeline = os.pipe()
        self._lifeline = os.fdopen(lifeline, "wb")
        try:
            owner = daemon.Owner(ended, self.directory)
            engine = _ENGINES[workers]
            running = daemon.start(
                self._home,
                create_seconds,
                port,
                engine=engine,
                owner=owner,
                operation_metadata=operation_metadata or "",
            )
            self._guardian = running.guardian
            super().__init__(running.url, running.token)
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
        """The path where `tpukit emulator …` finds it if `TPUKIT_HOME` is `directory`."""
        return self.directory / "state" / "emulator"

    @property
    def env(self) -> dict[str, str]:
        """An environment for `subprocess.run(env=…)`, with `variables`.

        It is this program's environment without any configuration or credentials of gcloud,
        Google's clients and tpukit.
        """
        return {**cleared(os.environ), **self.variables}

    @property
    def project(self) -> str:
        """The project that `env` names; every other project id works too."""
        return PROJECT

    @property
    def zone(self) -> str:
        """The zone that `env` names, which offers every accelerator type."""
        return ZONE

    def tpu_client(self) -> TpuClient:
        """Return google-cloud-tpu's client of API version v2, connected to this emulator.

        It uses gRPC, like `TpuClient()`, and so reads metadata of any type. Over REST the library
        raises `ParseError` after every write if `operation_metadata` is "common".
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
        """Remove all resources and changes; only the ports and the token remain.

        This includes the files that gcloud and tpukit have written with `env`.
        """
        super().reset()
        for path in (*self.directory.iterdir(), *self._home.parent.iterdir()):
            if path not in (self._home, self._home.parent):
                shutil.rmtree(path, ignore_errors=True)
                if path.is_file():
                    path.unlink()

    def close(self) -> None:
        """End it and its workers' processes, and remove its files. A second call does nothing."""
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

    def __exit__(self, *raised: object) -> None:
        self.close()


def cleared(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables that configure tpukit or Google's clients."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(_CLIENTS) or name.startswith(_HARMLESS)
    }

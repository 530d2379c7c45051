"""The identity of a command's calls, from the credentials that its settings choose."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tpukit.clock import Clock
from tpukit.errors import TpukitError
from tpukit.paths import Paths
from tpukit.settings.resolution import ROOT_USER, Settings
from tpukit.settings.table import is_loopback

if TYPE_CHECKING:
    from tpukit.google.access_tokens import AccessTokens
    from tpukit.google.credentials import Credentials
    from tpukit.google.retrying_session import Session


@dataclass(eq=False)
class Identity:
    """The identity of one command; files and servers are read when a property is first used."""

    settings: Settings
    paths: Paths
    environ: Mapping[str, str]
    clock: Clock
    say: Callable[[str], None]

    @cached_property
    def credentials(self) -> Credentials | None:
        """The source of access tokens; None if the settings disable credentials."""
        from tpukit.google.credentials import find_credentials

        settings = self.settings
        if settings.is_on("disable_credentials"):
            return None
        gcloud = self.environ.get("CLOUDSDK_CONFIG") or f"{Path.home()}/.config/gcloud"
        return find_credentials(
            settings.get("access_token_file"),
            settings.get("credentials_file"),
            Path(gcloud) / "application_default_credentials.json",
            impersonate=settings.get("impersonate_service_account"),
            iam_endpoint=settings.get("iamcredentials_endpoint"),
            gcloud_account=settings.get("account"),
            metadata_host=self.environ.get("GCE_METADATA_HOST", ""),
        )

    @cached_property
    def tokens(self) -> AccessTokens:
        """The authorisation of the calls."""
        from tpukit.google.access_tokens import AccessTokens, KeptTokens
        from tpukit.google.credentials import quota_project

        settings, credentials = self.settings, self.credentials
        quota, project = settings.get("quota_project"), settings.values["project"].value
        return AccessTokens(
            credentials,
            self.clock,
            kept=KeptTokens(self.paths.tokens) if settings.is_on("keep_tokens") else None,
            quota_project=quota_project(quota, credentials, project) if credentials else "",
            quota_fallback=quota.endswith("_FALLBACK"),
            on_account=self._say_account,
        )

    @cached_property
    def session(self) -> Session:
        from tpukit.google.retrying_session import Session

        return Session(
            self.tokens, self.clock, on_retry=self.say, on_difference=self.say_difference
        )

    @cached_property
    def account(self) -> str:
        """The owner of slices that this command makes: the account, or else the local user."""
        if not self.tokens.account:
            self.session.call("get an access token", lambda _: self.tokens.headers())
        return self.tokens.account or self._local_account

    @property
    def known_account(self) -> str:
        """The account, or "" if there are no usable credentials."""
        try:
            return self.account
        except TpukitError:
            return ""

    @property
    def _local_account(self) -> str:
        user = self.settings.get("user")
        # In containers every user is root, so the machine's name distinguishes them.
        return user if user != ROOT_USER else f"{user}-{socket.gethostname()}"

    def say_difference(self, seconds: float) -> None:
        """Say that ages and expiry times follow the API's clock, not this machine's.

        Say nothing for an API on this machine: users move the emulator's clock on purpose.
        """
        from tpukit.slices.lifetime import span

        if is_loopback(self.settings.get("tpu_endpoint")):
            return
        where = "ahead of" if seconds > 0 else "behind"
        self.say(
            f"this machine's clock is {span(abs(seconds))} {where} the API's; tpukit uses the API's"
        )

    def _say_account(self, account: str) -> None:
        """Say which account makes the calls, if it is impersonated or not gcloud's account."""
        values = self.settings.values
        gcloud, impersonated = values["account"], values["impersonate_service_account"]
        where = self.credentials.description if self.credentials else ""
        if impersonated.value:
            self.say(f"acting as {account}, impersonated ({impersonated.origin})")
        elif gcloud.value.lower() not in ("", account.lower()):
            self.say(f"acting as {account} ({where}), not as {gcloud.value} ({gcloud.origin})")

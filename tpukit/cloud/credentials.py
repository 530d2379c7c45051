"""Whose credentials calls are made with: found in files, without the waits of google-auth.

`google.auth.default()` is not used: without credentials it asks the metadata server for up to 12 s,
and with them it runs gcloud as a subprocess for the project. google-auth is imported only to get a
token, which a kept one spares (`access_tokens`).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from tpukit.cloud.failures import LOGIN, told
from tpukit.cloud.http_client import NoAnswer, cause
from tpukit.errors import BadInput, NotAuthenticated
from tpukit.text import one_line

SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
#: Seconds for each request that gets a token: google-auth itself waits for two minutes.
_TIMEOUT = 20.0
#: https://cloud.google.com/compute/docs/access/authenticate-workloads#applications
_METADATA_HOST = "metadata.google.internal"
_VM_ACCOUNT = "/computeMetadata/v1/instance/service-accounts/default"
#: Bytes of an answer of the metadata server: tokens are documented to have less than 2 kB.
_LARGEST = 1 << 16
#: What google-auth runs into where a credentials file holds JSON of another shape.
_WRONG_SHAPE = (AttributeError, KeyError, TypeError)
#: The types of credentials files that stand for a person, to whom a quota project belongs.
_PEOPLE = ("authorized_user", "external_account_authorized_user")


@dataclass(frozen=True)
class Token:
    """An access token; `expires` is in seconds since the epoch, `account` empty where unknown."""

    value: str = field(repr=False)
    expires: float = math.inf
    account: str = ""


@dataclass(frozen=True)
class Credentials:
    """Where access tokens come from.

    `account` is empty where only a token can tell it. `key` names what the tokens depend on, and is
    empty where they are not to be kept. `person` is whether a quota project is theirs to name.
    """

    description: str
    load: Callable[[], Any] = field(repr=False)  #: makes the credentials of google-auth
    account: str = ""
    key: str = ""
    person: bool = False
    quota_project: str = ""

    def fetch(self) -> Token:
        """Return a new token.

        Raises:
            NotAuthenticated: the credentials cannot be used.
            BadInput: a file that was named cannot be read.
            google.auth.exceptions.GoogleAuthError: no token came; `failures` reads it.
        """
        loaded = self.load()
        if not loaded.valid:
            import google.auth.transport.requests

            loaded.refresh(partial(google.auth.transport.requests.Request(), timeout=_TIMEOUT))
        expiry = loaded.expiry  # google-auth has UTC without saying so
        expires = expiry.replace(tzinfo=UTC).timestamp() if expiry else math.inf
        return Token(loaded.token, expires, self.account or _account_of(loaded))


def find_credentials(
    access_token_file: str,
    credentials_file: str,
    well_known_file: Path,
    *,
    impersonate: str = "",
    iam_endpoint: str = "",
    gcloud_account: str = "",
    metadata_host: str = "",
) -> Credentials:
    """Return credentials from a token file, a credentials file, or Application Default Credentials.

    On a Compute Engine VM, the metadata server's own are the last resort. `impersonate` is a list
    of service accounts as gcloud has it: the last one is acted as, through those before it.
    `gcloud_account` is whom gcloud itself is logged in as, which is of no use here.

    Raises:
        NotAuthenticated: none of them is there, or the file cannot be used.
        BadInput: a file that was named cannot be read.
    """
    found = _found(access_token_file, credentials_file, well_known_file, metadata_host)
    if found is None:
        own = f"gcloud's login as {gcloud_account} is for gcloud alone" if gcloud_account else ""
        raise NotAuthenticated("no credentials for Google Cloud", reason=own, fix=LOGIN)
    return _impersonated(found, impersonate, iam_endpoint) if impersonate else found


def _found(
    access_token_file: str, credentials_file: str, well_known_file: Path, metadata_host: str
) -> Credentials | None:
    if access_token_file:
        return _token_file(Path(access_token_file))
    if credentials_file:
        return _file(Path(credentials_file), "credentials file")
    if well_known_file.is_file():
        return _file(well_known_file, "application default credentials")
    if on_compute_engine():
        return vm_credentials(metadata_host)
    return None


def quota_project(setting: str, credentials: Credentials, project: str) -> str:
    """Return the project that pays for the calls, empty where the header is not to be sent.

    The words are those of gcloud's `billing/quota_project`. Where it is not set, a credentials file
    may name one, and a person's calls are on the current project, as gcloud's are: Google's own
    client, which people log in with, may not use the TPU API.
    """
    current = project if credentials.person else ""
    if not setting:
        return credentials.quota_project or current
    words = {"LEGACY": "", "CURRENT_PROJECT": current, "CURRENT_PROJECT_WITH_FALLBACK": current}
    return words.get(setting, setting)


def on_compute_engine(product: Path = Path("/sys/class/dmi/id/product_name")) -> bool:
    """Return whether the machine's DMI name is that of a Google VM; this makes no request.

    google-auth knows one so: google/auth/compute_engine/_metadata.py, detect_gce_residency_linux.
    """
    try:
        return product.read_text(encoding="ascii", errors="replace").strip().startswith("Google")
    except OSError:
        return False


def _token_file(path: Path) -> Credentials:
    def load() -> Any:
        import google.oauth2.credentials

        return google.oauth2.credentials.Credentials(_token(path))

    _token(path)
    return _TokenFile(f"access token file {path}", load, path=path)


@dataclass(frozen=True)
class _TokenFile(Credentials):
    """A file with one token, which somebody else may renew."""

    path: Path = Path()

    def fetch(self) -> Token:
        return Token(_token(self.path))


def _token(path: Path) -> str:
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        what = f"cannot read the access token file {path}"
        raise BadInput(what, why=str(error), fix=LOGIN) from error
    if not token or not token.isprintable() or " " in token:
        raise BadInput(f"the access token file {path} does not hold one token", fix=LOGIN)
    return token


def _file(path: Path, kind: str) -> Credentials:
    try:
        text = path.read_bytes()
        info = json.loads(text)
    except (OSError, ValueError) as error:
        raise _unusable(path, error) from error
    if not isinstance(info, dict):
        raise _unusable(path, TypeError("it holds no JSON object"))
    kind_of_file, quota = info.get("type"), info.get("quota_project_id")
    return Credentials(
        f"{kind} {path}",
        partial(_load, path, info),
        account=_account_in(info),
        key=_key(str(path), text.decode("latin-1"), *SCOPES) if _decides(info) else "",
        person=kind_of_file in _PEOPLE,
        quota_project=quota if isinstance(quota, str) else "",
    )


def _decides(info: Mapping[str, Any]) -> bool:
    """Tell whether a file alone decides whose tokens come of it.

    A workload's identity is where its `credential_source` points: the environment, another file.
    """
    source = info.get("source_credentials")
    return info.get("type") != "external_account" and not (
        isinstance(source, dict) and not _decides(source)
    )


def _load(path: Path, info: Mapping[str, Any]) -> Any:
    import google.auth
    import google.auth.exceptions

    # A person's token has all that they agreed to, their address among it, unless less is asked.
    scopes = None if info.get("type") == "authorized_user" else SCOPES
    try:
        # Not from the file, which may have changed since: the tokens are kept under what was read.
        return google.auth.load_credentials_from_dict(info, scopes=scopes)[0]
    except (google.auth.exceptions.GoogleAuthError, OSError, ValueError, *_WRONG_SHAPE) as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: Exception) -> NotAuthenticated:
    return NotAuthenticated(f"cannot use the credentials in {path}", why=told(error), fix=LOGIN)


def _account_in(info: Mapping[str, Any]) -> str:
    """Return the account that a credentials file names, empty where it does not.

    `account` of a person's file is empty in what gcloud writes today. Whoever a file lets one act
    as is named in a URL: `…/serviceAccounts/EMAIL:generateAccessToken`.
    """
    url = str(info.get("service_account_impersonation_url", ""))
    acted_as = url.rpartition("/serviceAccounts/")[2].partition(":")[0] if url else ""
    named = "client_email" if info.get("type") == "service_account" else "account"
    return one_line(acted_as or str(info.get(named) or ""))


def _account_of(loaded: Any) -> str:
    """Return the account that came with a token: in an ID token, or from the metadata server."""
    named = getattr(loaded, "service_account_email", "") or ""
    if "@" in named:
        return one_line(named)
    import base64

    # It came from Google over TLS together with the access token, so its signature is not checked.
    payload = (getattr(loaded, "id_token", None) or "").partition(".")[2].partition(".")[0]
    try:
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)) or "{}")
        return one_line(str(claims.get("email", "")))
    except (ValueError, AttributeError):
        return ""


def vm_credentials(host: str) -> Credentials:
    """Return the credentials of a Compute Engine VM, whose metadata server is at `host`."""

    def load() -> Any:
        from google.auth import compute_engine

        return compute_engine.Credentials()

    return _MetadataServer("the metadata server of this VM", load, host=host or _METADATA_HOST)


@dataclass(frozen=True)
class _MetadataServer(Credentials):
    """It keeps its tokens itself, and is asked without google-auth: every command asks it."""

    host: str = ""

    def fetch(self) -> Token:
        text = self._read("token")
        try:
            given = json.loads(text)
            token, expires = str(given["access_token"]), time.time() + float(given["expires_in"])
        except (KeyError, TypeError) as error:
            raise ValueError("the metadata server gave no token") from error
        return Token(token, expires, one_line(self._read("email")))

    def _read(self, name: str) -> str:
        connection = HTTPConnection(self.host, timeout=_TIMEOUT)  # which goes through no proxy
        try:
            connection.request(
                "GET", f"{_VM_ACCOUNT}/{name}", headers={"Metadata-Flavor": "Google"}
            )
            answer = connection.getresponse()
            text = answer.read(_LARGEST).decode()
        except (OSError, HTTPException) as error:
            raise NoAnswer(f"the metadata server: {cause(error)}") from error
        finally:
            connection.close()
        if answer.status == 404:
            raise NotAuthenticated("this VM has no service account", fix=LOGIN)
        if answer.status != 200:
            raise NoAnswer(f"the metadata server answers {answer.status}")
        return text


def _impersonated(source: Credentials, chain: str, endpoint: str) -> Credentials:
    *through, account = [each.strip() for each in chain.split(",")]

    def load() -> Any:
        from google.auth import impersonated_credentials

        url = f"{endpoint.rstrip('/')}/v1/projects/-/serviceAccounts/{account}:generateAccessToken"
        return impersonated_credentials.Credentials(
            source.load(),
            account,
            list(SCOPES),
            delegates=through or None,
            iam_endpoint_override=url if endpoint else None,
        )

    key = _key(source.key, endpoint, *through, account) if source.key else ""
    return Credentials(f"{source.description}, impersonating", load, account=account, key=key)


def _key(*parts: str) -> str:
    import hashlib

    return hashlib.sha256("\0".join(parts).encode()).hexdigest()

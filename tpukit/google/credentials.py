"""The credentials for calls, read from files or the metadata server.

`google.auth.default()` is too slow: without credentials it asks the metadata server for up to 12 s;
with credentials it runs gcloud to learn the project. google-auth is imported only when a command
needs a new token.
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

from tpukit.errors import BadInput, NotAuthenticated
from tpukit.google.failures import LOGIN, message_of
from tpukit.google.no_answer import NoAnswer, cause
from tpukit.google.node_json import SCOPES
from tpukit.text import one_line

#: Seconds for each request for a token; the default of google-auth is two minutes.
_TIMEOUT = 20.0
#: https://cloud.google.com/compute/docs/access/authenticate-workloads#applications
_METADATA_HOST = "metadata.google.internal"
_VM_ACCOUNT = "/computeMetadata/v1/instance/service-accounts/default"
#: Bytes to read of an answer of the metadata server; tokens have less than 2 kB (documented).
_LARGEST = 1 << 16
#: The errors of google-auth for a credentials file with JSON of another shape.
_WRONG_SHAPE = (AttributeError, KeyError, TypeError)
#: The types of credentials files that stand for a person.
_PEOPLE = ("authorized_user", "external_account_authorized_user")


@dataclass(frozen=True)
class Token:
    """An access token. `expires` is in seconds since the epoch; an unknown `account` is empty."""

    value: str = field(repr=False)
    expires: float = math.inf
    account: str = ""


@dataclass(frozen=True)
class Credentials:
    """A source of access tokens.

    `account` is empty if only a token can name it. `key` is a hash of everything that decides the
    tokens, and is empty if they must not be kept in files. `person` is True if the credentials are
    a person's: their calls bill the current project by default.
    """

    description: str
    load: Callable[[], Any] = field(repr=False)  #: returns credentials of google-auth
    account: str = ""
    key: str = ""
    person: bool = False
    quota_project: str = ""

    def fetch(self) -> Token:
        """Return a new token.

        Raises:
            NotAuthenticated: the credentials are unusable.
            BadInput: the access token file is unreadable.
            NoAnswer, ValueError: the metadata server gave no token.
            google.auth.exceptions.GoogleAuthError: Google gave no token.
        """
        loaded = self.load()
        if not loaded.valid:
            import google.auth.transport.requests

            loaded.refresh(partial(google.auth.transport.requests.Request(), timeout=_TIMEOUT))
        expiry = loaded.expiry  # in UTC, without a time zone
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

    On a Compute Engine VM the last resort is its metadata server. `impersonate` is a list of
    service accounts as gcloud takes it: calls are made as the last one, by delegation through the
    others. `gcloud_account` is gcloud's own login, only for the error message: it cannot be used.

    Raises:
        NotAuthenticated: there are no credentials, or their file is unusable.
        BadInput: the access token file is unreadable.
    """
    source = _source(access_token_file, credentials_file, well_known_file, metadata_host)
    if source is None:
        own = f"only gcloud can use its login as {gcloud_account}" if gcloud_account else ""
        raise NotAuthenticated("no credentials for Google Cloud", reason=own, fix=LOGIN)
    return _impersonated(source, impersonate, iam_endpoint) if impersonate else source


def _source(
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
    """Return the project that pays for the calls, or "" to send no quota header.

    `setting` takes the values of gcloud's `billing/quota_project`. Without it, the project is the
    one in the credentials file, or for a person the current project, as in gcloud. Without the
    header, a person's calls would bill the project of Google's OAuth client, which may not use the
    TPU API.
    """
    current = project if credentials.person else ""
    if not setting:
        return credentials.quota_project or current
    words = {"LEGACY": "", "CURRENT_PROJECT": current, "CURRENT_PROJECT_WITH_FALLBACK": current}
    return words.get(setting, setting)


def on_compute_engine(product: Path = Path("/sys/class/dmi/id/product_name")) -> bool:
    """Return True if the machine's DMI product name is Google's; this makes no request.

    google-auth does the same: google/auth/compute_engine/_metadata.py, detect_gce_residency_linux.
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
    """A file with one token, which another program may replace."""

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
        raise BadInput(f"the access token file {path} must contain one token", fix=LOGIN)
    return token


def _file(path: Path, kind: str) -> Credentials:
    try:
        text = path.read_bytes()
        info = json.loads(text)
    except (OSError, ValueError) as error:
        raise _unusable(path, error) from error
    if not isinstance(info, dict):
        raise _unusable(path, TypeError("it is not a JSON object"))
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
    """Return True if the file alone decides the account of its tokens.

    The identity of an external account is elsewhere: `credential_source` points to the environment,
    another file or a URL.
    """
    source = info.get("source_credentials")
    return info.get("type") != "external_account" and not (
        isinstance(source, dict) and not _decides(source)
    )


def _load(path: Path, info: Mapping[str, Any]) -> Any:
    import google.auth
    import google.auth.exceptions

    # Without scopes, a person's token has all those that they agreed to, such as their address.
    scopes = None if info.get("type") == "authorized_user" else SCOPES
    try:
        # The file may have changed since, and `key` belongs to the content that was read.
        return google.auth.load_credentials_from_dict(info, scopes=scopes)[0]
    except (google.auth.exceptions.GoogleAuthError, OSError, ValueError, *_WRONG_SHAPE) as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: Exception) -> NotAuthenticated:
    why = getattr(error, "strerror", None) or message_of(error)
    return NotAuthenticated(f"cannot use the credentials in {path}", why=why, fix=LOGIN)


def _account_in(info: Mapping[str, Any]) -> str:
    """Return the account that a credentials file names, or "".

    gcloud writes an empty `account` into a person's file. A file for impersonation has the service
    account in a URL: `…/serviceAccounts/EMAIL:generateAccessToken`.
    """
    url = str(info.get("service_account_impersonation_url", ""))
    impersonated = url.rpartition("/serviceAccounts/")[2].partition(":")[0] if url else ""
    key = "client_email" if info.get("type") == "service_account" else "account"
    return one_line(impersonated or str(info.get(key) or ""))


def _account_of(loaded: Any) -> str:
    """Return the account of google-auth's credentials, which may be in their ID token; else ""."""
    email = getattr(loaded, "service_account_email", "") or ""
    if "@" in email:
        return one_line(email)
    import base64

    # Google sent the ID token over TLS with the access token, so its signature is not checked.
    payload = (getattr(loaded, "id_token", None) or "").partition(".")[2].partition(".")[0]
    try:
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)) or "{}")
        return one_line(str(claims.get("email", "")))
    except (ValueError, AttributeError):
        return ""


def vm_credentials(host: str) -> Credentials:
    """Return the credentials of this Compute Engine VM; `host` is its metadata server."""

    def load() -> Any:
        from google.auth import compute_engine

        return compute_engine.Credentials()

    return _MetadataServer("the metadata server of this VM", load, host=host or _METADATA_HOST)


@dataclass(frozen=True)
class _MetadataServer(Credentials):
    """The metadata server of a VM. It keeps tokens itself, so every command asks it."""

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
        connection = HTTPConnection(self.host, timeout=_TIMEOUT)  # never through a proxy
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
            raise NoAnswer(f"the metadata server answered {answer.status}")
        return text


def _impersonated(source: Credentials, chain: str, endpoint: str) -> Credentials:
    *delegates, account = [account.strip() for account in chain.split(",")]

    def load() -> Any:
        from google.auth import impersonated_credentials

        url = f"{endpoint.rstrip('/')}/v1/projects/-/serviceAccounts/{account}:generateAccessToken"
        return impersonated_credentials.Credentials(
            source.load(),
            account,
            list(SCOPES),
            delegates=delegates or None,
            iam_endpoint_override=url if endpoint else None,
        )

    key = _key(source.key, endpoint, *delegates, account) if source.key else ""
    return Credentials(f"{source.description}, impersonating", load, account=account, key=key)


def _key(*parts: str) -> str:
    import hashlib

    return hashlib.sha256("\0".join(parts).encode()).hexdigest()

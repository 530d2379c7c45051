"""Application Default Credentials, loaded without the waits and the subprocess of google-auth."""

from __future__ import annotations

from pathlib import Path

import google.auth
import google.auth.credentials
import google.auth.exceptions
import google.oauth2.credentials

from tpukit.cloud.failures import LOGIN
from tpukit.errors import BadInput, NotAuthenticated
from tpukit.text import one_line

SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
#: What google-auth runs into where a credentials file holds JSON of another shape.
_WRONG_SHAPE = (AttributeError, KeyError, TypeError)


def load_credentials(
    access_token_file: str, credentials_file: str, well_known_file: Path, quota_project: str
) -> google.auth.credentials.Credentials:
    """Return credentials from a token file, a credentials file, or Application Default Credentials.

    `google.auth.default()` is not used: without credentials it asks the metadata server for up to
    12 s, and with them it runs gcloud as a subprocess for the project. On a Compute Engine VM, the
    metadata server's own credentials are the last resort.

    Raises:
        NotAuthenticated: none of them is there, or the file cannot be used.
        BadInput: a file that was named cannot be read.
    """
    if access_token_file:
        return google.oauth2.credentials.Credentials(_token(Path(access_token_file)))
    named = credentials_file or (str(well_known_file) if well_known_file.is_file() else "")
    if named:
        return _from_file(named, quota_project)
    if on_compute_engine():
        from google.auth import compute_engine

        return compute_engine.Credentials()
    raise NotAuthenticated("no credentials for Google Cloud", fix=LOGIN)


def on_compute_engine(product: Path = Path("/sys/class/dmi/id/product_name")) -> bool:
    """Return whether the machine's DMI name is that of a Google VM; this makes no request."""
    try:
        return product.read_text(encoding="ascii", errors="replace").strip().startswith("Google")
    except OSError:
        return False


def _token(path: Path) -> str:
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"cannot read the access token file {path}", why=str(error), fix=LOGIN
        ) from (error)
    if not token or not token.isprintable() or " " in token:
        raise BadInput(f"the access token file {path} does not hold one token", fix=LOGIN)
    return token


def _from_file(path: str, quota_project: str) -> google.auth.credentials.Credentials:
    try:
        credentials, _ = google.auth.load_credentials_from_file(
            path, scopes=SCOPES, quota_project_id=quota_project or None
        )
    except (google.auth.exceptions.GoogleAuthError, OSError, ValueError, *_WRONG_SHAPE) as error:
        why = one_line(str(error)) or type(error).__name__
        raise NotAuthenticated(
            f"cannot use the credentials in {path}", why=why, fix=LOGIN
        ) from error
    return credentials

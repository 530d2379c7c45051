"""Accounts of Google as credentials files have them, and the servers that give them tokens."""

from __future__ import annotations

import base64
import json
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from support.local_cloud import Reply, json_reply

ROBOT = "robot@demo-project.iam.gserviceaccount.com"


@cache
def _private_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def service_account(path: Path, token_uri: str, email: str = ROBOT) -> Path:
    """Write the key file of a service account whose tokens come from `token_uri`."""
    document = {
        "type": "service_account",
        "client_email": email,
        "token_uri": token_uri,
        "private_key": _private_key(),
        "private_key_id": "1",
        "project_id": "demo-project",
    }
    path.write_text(json.dumps(document))
    return path


def id_token(email: str) -> str:
    """Return an ID token of an account; nobody checks its signature."""
    claims = base64.urlsafe_b64encode(json.dumps({"email": email}).encode()).decode()
    return f"e30.{claims.rstrip('=')}.c2ln"


def token_reply(token: str, **more: str) -> Reply:
    """Return what a token endpoint answers."""
    return json_reply(200, {"access_token": token, "expires_in": 3600, **more})

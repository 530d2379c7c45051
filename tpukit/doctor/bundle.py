"""The archive of `tpukit doctor --bundle`: facts for a bug report, without secrets and names."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tpukit import __version__
from tpukit.errors import BadInput, Fix
from tpukit.settings.resolution import Setting
from tpukit.text import sanitize, shown_path

#: The number of logs in a folder, the newest ones, and the bytes from the end of each.
_LOGS, _TAIL = 5, 64 * 1024
_PACKAGES = (
    *("google-cloud-tpu", "google-auth", "paramiko", "cryptography", "pydantic"),
    *("rich", "typer"),
)
#: The settings whose values are in the bundle. It only says of the others if they are set.
_PLAIN = frozenset(
    {"zone", "network", "disable_credentials", "keep_tokens", "keep_hints", "silence", "persist"}
)
#: Replacements in all texts. The order matters: a key may contain what looks like an address.
_SECRETS = tuple(
    (re.compile(pattern, re.DOTALL | re.IGNORECASE), word)
    for pattern, word in (
        (r"-----BEGIN [A-Z ]+-----.*?(-----END [A-Z ]+-----|\Z)", "KEY"),
        (r"([\w+/=]{16,}\s+)+-----END [A-Z ]+-----", "KEY"),  # its start was cut off
        (r"\b(ssh-|ecdsa-|sk-)[\w@.-]+ AAAA[\w+/=]+( [^\s\"\\]+)?", "KEY"),
        # Google's access, refresh and client secrets, API keys, and JSON web tokens.
        (r"\b(ya29\.|1//|GOCSPX-|AIza|eyJ)[\w./~+=-]+", "SECRET"),
        # Tokens of Hugging Face, GitHub, GitLab, OpenAI, Slack, Weights & Biases, and AWS.
        (r"\b(hf_|gh[opsru]_|github_pat_|glpat-|sk-|xox[a-z]-)[\w-]{8,}|\bAKIA\w{12,}", "SECRET"),
        (r"\b(authorization\"?\s*:\s*\"?)[^\"\n]+", r"\1SECRET"),
        (r"\bbearer\s+[^\s\",]+", "Bearer SECRET"),
        (r"(\b\w+://[^\s?\"']+\?)[^\s\"']+", r"\1SECRET"),  # signed links
        (
            r"(\b\w*(token|passw(or)?d|passphrase|secret|api[-_]?key)\w*[\"']?\s*[:=]\s*[\"']?)"
            r"[^\s\"',}]+",
            r"\1SECRET",
        ),
        (r"(--[\w-]*(token|password|passphrase|secret|api-?key)[\w-]* +)\S+", r"\1SECRET"),
        (r"(://)[^\s/@]+@", r"\1LOGIN@"),
        (r"[\w.+-]+@[\w-]+(\.[\w-]+)+", "ACCOUNT"),
        (r"(?<![\w.])\d{1,3}(\.\d{1,3}){3}(?![\w.])", "ADDRESS"),
        (r"(?<![\w:])[0-9a-f]{1,4}(:[0-9a-f]{0,4}){2,6}:[0-9a-f]{1,4}(?![\w:])", "ADDRESS"),
        (r"(?<![\w:])[0-9a-f]{0,4}(:[0-9a-f]{1,4})*::[0-9a-f:]*[0-9a-f]", "ADDRESS"),
        (r"\bproject([:/]|s/)\d{6,}", r"project\1NUMBER"),
    )
)


@dataclass(frozen=True)
class Redaction:
    """Takes secrets, addresses and known names out of texts.

    `names` are the names to replace, each with its replacement; `home` becomes `~`.
    """

    names: Mapping[str, str]
    home: str = ""

    def of(self, text: str) -> str:
        """Return a text without them."""
        text = sanitize(text)
        for pattern, word in (*self._own, *_SECRETS):
            text = pattern.sub(word, text)
        return text

    def of_json(self, value: Any) -> Any:
        """Return a JSON value with all its texts redacted."""
        if isinstance(value, str):
            return self.of(value)
        if isinstance(value, Mapping):
            return {key: self.of_json(item) for key, item in value.items()}
        return [self.of_json(item) for item in value] if isinstance(value, list) else value

    @cached_property
    def _own(self) -> list[tuple[re.Pattern[str], str]]:
        words = {self.home: "~"} if len(self.home) > 1 else {}
        # Longer names first: an account contains the name of its user.
        words |= {name: self.names[name] for name in sorted(self.names, key=len, reverse=True)}
        return [
            (re.compile(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", re.IGNORECASE), word)
            for name, word in words.items()
            if name
        ]


def names_of(accounts: Iterable[str], projects: Iterable[str], user: str) -> dict[str, str]:
    """Return the names to replace, with the forms that labels and OS Login make of an account."""
    forms = [
        form
        for account in accounts
        for form in (account, account.partition("@")[0], *_joined(account))
    ]
    words = {**dict.fromkeys(forms, "ACCOUNT"), **dict.fromkeys(projects, "PROJECT"), user: "USER"}
    return {name: word for name, word in words.items() if name}


def _joined(account: str) -> Iterator[str]:
    return (re.sub(r"[^a-z0-9]", sign, account.lower()) for sign in "-_")


def write_bundle(
    path: Path,
    findings: Sequence[Mapping[str, Any]],
    settings: Iterable[Setting],
    logs: Iterable[Path],
    redaction: Redaction,
) -> list[str]:
    """Write the archive, and return the names of the files in it.

    `logs` are the newest logs of tpukit. Raises `BadInput` if the file exists or cannot be written.
    """
    documents = {
        "report.json": redaction.of_json({"findings": [*findings]}),
        "versions.json": _versions(),
        "settings.json": redaction.of_json({setting.name: _shown(setting) for setting in settings}),
    }
    texts = {name: json.dumps(document, indent=1) for name, document in documents.items()}
    for log in logs:
        texts[f"logs/{redaction.of(log.name)}"] = redaction.of(_tail(log))
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with (
            os.fdopen(descriptor, "wb") as file,
            tarfile.open(fileobj=file, mode="w:gz") as archive,
        ):
            for name, text in texts.items():
                _add(archive, name, text.encode())
    except OSError as error:
        what, fix = f"cannot write {shown_path(path)}", Fix(note="name another file")
        raise BadInput(what, reason=error.strerror or "", fix=fix) from error
    return [*texts]


def newest(folder: Path, pattern: str) -> list[Path]:
    """Return the newest files of a folder that match a pattern."""
    files = [path for path in folder.glob(pattern) if path.is_file() and not path.is_symlink()]
    return sorted(files, key=lambda path: path.stat().st_mtime)[-_LOGS:]


def _versions() -> dict[str, str]:
    return {
        "tpukit": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        **{name: _version(name) for name in _PACKAGES},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _shown(setting: Setting) -> dict[str, str]:
    value = setting.value if setting.name in _PLAIN else "set" if setting.value else ""
    return {"value": value, "origin": setting.origin}


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL))
        return file.read().decode(errors="replace")


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o600
    archive.addfile(entry, io.BytesIO(content))

"""The flags of the folder that a command pushes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Option

Target = Annotated[
    str, Option("--to", metavar="PATH", help="Folder on the workers; default: its own name.")
]
WithSecrets = Annotated[
    bool, Option("--with-secrets", help="Also send files that hold secrets: .ssh, .aws, .env, ….")
]
Overwrite = Annotated[
    bool,
    Option(
        "--overwrite", help="Also replace files of another folder's push, or written on a worker."
    ),
]


@dataclass(frozen=True)
class PushFlags:
    """The folder that a command pushes before it starts."""

    push: Annotated[
        str, Option(metavar="DIRECTORY", help="Push this folder first, and start in it.")
    ] = ""
    to: Target = ""
    with_secrets: WithSecrets = False
    overwrite: Overwrite = False

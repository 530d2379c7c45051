"""Stands for the interpreter that gcloud's launcher starts: see warm_gcloud.py.

Its arguments are the server's socket, the interpreter that it stands for, its own name, and what
that interpreter is given.
"""

import os
import sys

sys.path.append(os.path.dirname(__file__))
import fork_client


def main(address: str, python: str, name: str, *words: str) -> None:
    # What gcloud's commands see is what they see where nothing stands for their interpreter.
    variables = {key: python if value == name else value for key, value in os.environ.items()}
    variables.pop("CLOUDSDK_PYTHON")
    if not words[:1] or not words[0].endswith("/lib/gcloud.py"):
        os.execve(python, [python, *words], variables)
    fork_client.run(address, words, variables)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""`python -m tpukit`, and the installed command."""

from __future__ import annotations

import gc
import os
import signal


def main() -> None:
    """Run the command line. Ctrl-C during the imports ends it with 130, without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    # Imports make hundreds of thousands of objects that are never freed. With Python's default
    # threshold, searching them for garbage delays the start of every command.
    gc.set_threshold(50_000)
    from tpukit.cli import main as program

    program.main()


if __name__ == "__main__":
    main()

"""`python -m tpukit`, and the installed command."""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Run the command line. Ctrl-C during the imports ends it with 130, without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    from tpukit.cli import main as program

    program.main()


if __name__ == "__main__":
    main()

"""`python -m tpukit`."""

from tpukit.cli.main import main

main()

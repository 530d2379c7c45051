"""Commands on workers: attached and detached runs, their logs and ends, notebooks, the guard.

The worker's half is in `agent`. Nothing here prints.
"""

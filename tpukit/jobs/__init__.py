"""Commands on workers: attached and detached runs, logs, ends, notebooks, services, the guard.

The worker's half is in `agent`. Nothing here prints.
"""

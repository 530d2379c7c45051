"""Commands on workers: runs, their logs, ends and traces, notebooks, services, the guard.

The worker's half is in `agent`. Nothing here prints.
"""

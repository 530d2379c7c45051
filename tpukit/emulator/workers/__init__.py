"""The workers: their addresses, folders, processes, metadata servers and SSH servers.

The APIs use only the protocol in `worker_host`.
"""

"""The machines that stand in for TPU VMs: addresses, folders, processes, metadata servers.

The APIs know them by the protocol in `worker_host` alone.
"""

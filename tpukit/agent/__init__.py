"""The code that runs on workers: sent once, for Python 3.8 with only its standard library.

`tpukit.ssh.agent_client` sends it and makes requests to it. It imports nothing else of tpukit.
Both ends of a copy use `archives` and `contents`.
"""

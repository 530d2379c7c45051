"""The code that runs on workers: sent once, in Python 3.8 and its standard library alone.

`tpukit.remote.agent_client` sends it and asks it. It knows nothing else of tpukit. Both ends of a
copy use `archives` and `contents`.
"""

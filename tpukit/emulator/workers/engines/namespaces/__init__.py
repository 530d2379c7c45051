"""The engine of Linux with root, an optional part: a worker's own network, root and processes.

Nothing here is loaded unless this engine is asked for.
"""

"""One command on many workers at once: its environment, its input, its end.

Commands that survive the connection are jobs; see `remote.job`.
"""

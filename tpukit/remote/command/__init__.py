"""One command on many workers at once: its environment, its input, its end.

What goes on without us is a job and lives in `remote.job`.
"""

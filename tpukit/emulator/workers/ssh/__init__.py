"""A worker's SSH server: its listener, sessions, files, and the faults it can be given.

What a session runs in is an engine's business.
"""

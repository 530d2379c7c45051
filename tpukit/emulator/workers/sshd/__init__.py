"""A worker's SSH server: its listener, sessions, files and faults.

Code that runs a session's commands belongs in `engines`.
"""

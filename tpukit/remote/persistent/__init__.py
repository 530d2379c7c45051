"""Connections that outlive a command, in a pool that one process of the user keeps.

They only make things faster: everything works with that process gone.
"""

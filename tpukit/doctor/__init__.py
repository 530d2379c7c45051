"""Checks of a project, of this machine and of a slice, each with a reason and a fix.

They change nothing; the repair is a command that the user types.
"""

"""Watches: if the slice of a command is lost, make it again and restart the command.

Slices are handled in `slices`, commands on them in `jobs`. Nothing here prints.
"""

#: How often a watch makes its slice again, at most and by default.
RECOVERIES = 100

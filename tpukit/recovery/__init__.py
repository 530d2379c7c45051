"""Watch commands: if the slice of a command is lost, make it again and restart the command.

Slices are handled in `slices`, programs on them in `work`. Nothing here prints.
"""

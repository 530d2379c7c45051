"""Workers over SSH: pinned host keys, commands at most once, detached jobs, fan-out."""

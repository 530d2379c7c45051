"""The engine whose workers boot: Debian with systemd, OpenSSH, sudo and apt; Linux with root alone.

Nothing here is loaded unless this engine is asked for.
"""

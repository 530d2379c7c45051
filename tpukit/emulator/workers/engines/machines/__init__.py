"""The engine with workers that boot Debian with systemd, OpenSSH, sudo and apt.

It needs root on Linux. Only its users import it.
"""

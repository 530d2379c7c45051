"""Reach the workers of a slice: firewall rule, address, key, host keys, selection.

Work on reached workers lives in `files`, `jobs`, `provision` and `smoke`.
"""

"""The part of the Compute Engine API that TPU tools use: firewall rules and projects.

OS Login too. Nothing here knows HTTP, SSH or real time.
"""

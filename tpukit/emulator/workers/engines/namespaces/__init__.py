"""The engine that gives each worker its own network, root folder and processes.

It needs root on Linux. Only its users, and those of `machines`, import it.
"""

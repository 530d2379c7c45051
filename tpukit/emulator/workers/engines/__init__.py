"""The engines that run a worker's commands: as this account's processes, or in namespaces.

Code that accepts SSH connections belongs in `ssh`.
"""

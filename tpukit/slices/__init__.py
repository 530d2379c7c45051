"""Find, create, change, start, stop and delete slices and queued resources.

Nothing here uses SSH or prints. The cloud is reached only through the provider protocols.
"""

"""What becomes of slices: found, made sure of, started, stopped, deleted.

Nothing here knows SSH, and nothing prints; the cloud is a protocol.
"""

"""The Cloud TPU API: nodes, queued resources, operations and the catalogue of what there is.

Nothing here knows HTTP, SSH or real time.
"""

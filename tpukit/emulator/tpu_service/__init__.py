"""The Cloud TPU API: nodes, queued resources, operations and the catalogue.

Code about HTTP, SSH or real time belongs elsewhere.
"""

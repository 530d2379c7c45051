"""The one way from a slice's name to its workers: rule, address, key, host keys, selection.

What is done on a worker once it is reached lives in `remote`, `work`, `provision` and `smoke`.
"""

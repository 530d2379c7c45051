"""Authenticated connections to workers: keys, proofs, routes, and the detection of losses.

Commands, jobs and transfers over a connection are in the other packages of `remote`.
"""

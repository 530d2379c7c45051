"""A small computation on every device of every worker, and the judgement on it.

A framework's program lies here beside the modules; which frameworks there are is data.
"""

"""A small computation on every device of every worker, and the judgement of its results.

The programs of the frameworks are here too; recipes (data) say which frameworks exist.
"""

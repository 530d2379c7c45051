"""The results of the commands as tables and documents: a file a noun.

A view is made of values alone: what asks an API or a worker, or prints, has no place here.
"""

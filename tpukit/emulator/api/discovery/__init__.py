"""Google's discovery documents, and requests and answers held against them.

The documents are data, trimmed by scripts/discovery. No method and no resource is known here.
"""

"""Google's discovery documents, and checks of requests and answers against them.

scripts/discovery trims the documents, which are data. This code knows no particular method.
"""

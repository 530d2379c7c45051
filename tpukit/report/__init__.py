"""Reports as HTML pages that need no other file.

A page has tables and texts; the verbs decide which, and the views make them.
"""

"""The command line: one file a verb, and the only importer of typer.

A verb parses, calls one function and returns a view; it never loops, polls or prints.
"""

"""The results of the commands as tables and documents: one file for each noun.

Views are built from values only. Modules here call no API or worker, and print nothing.
"""

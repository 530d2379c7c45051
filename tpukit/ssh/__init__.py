"""SSH connections to known workers, and one request on many of them at once.

Nothing here knows of clouds, jobs or the command line.
"""

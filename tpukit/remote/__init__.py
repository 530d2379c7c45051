"""SSH to known workers: connections, commands, jobs and transfers.

Nothing here knows of clouds or of the command line.
"""

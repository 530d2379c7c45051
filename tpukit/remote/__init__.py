"""SSH itself: connections, commands, jobs and transfers of workers that were found already.

Nothing here knows slices, clouds or the command line.
"""

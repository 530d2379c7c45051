"""Whether a training step fits on an accelerator type, as libtpu compiles it without a chip.

Nothing here knows a slice or a worker: it runs on the user's machine, in the user's Python.
"""

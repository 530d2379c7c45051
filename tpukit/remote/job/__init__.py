"""Commands that continue without their connection: they start once and can be followed later.

`tpukit.agent` runs them on the worker.
"""

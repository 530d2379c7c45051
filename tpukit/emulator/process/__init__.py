"""The emulator's processes on this machine: how they start, are found, guarded and stopped.

Code that answers requests belongs elsewhere.
"""

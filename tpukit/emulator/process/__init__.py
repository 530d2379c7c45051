"""The emulator as processes of this machine: started, found, guarded, stopped.

What it answers lives elsewhere.
"""

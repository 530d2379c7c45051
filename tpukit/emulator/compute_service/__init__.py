"""The parts of Compute Engine, OS Login and related APIs that TPU tools use.

Code about HTTP, SSH or real time belongs elsewhere.
"""

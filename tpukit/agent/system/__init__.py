"""The system of a worker: facts about it, and steps that change it and can be undone.

An ordinary user runs this code. Only single commands run as root, through sudo.
"""

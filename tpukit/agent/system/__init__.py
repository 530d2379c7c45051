"""The system of a worker: facts about it, and steps that change it and can be taken back.

An ordinary user runs this. Single commands go through sudo, and nothing of the agent runs as root.
"""

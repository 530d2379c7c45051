"""One authenticated connection to one worker: who is proved, how it is dialled, when it is lost.

What runs over it lives in the rooms beside this one.
"""

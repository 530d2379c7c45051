"""One file a verb: it parses its arguments, calls one function of a room, and shows the value.

Policies live in the rooms, and tables in `views`.
"""

"""The meaning of states, exit codes and error texts, with the remedy.

It only reads text. A failure is classified by the room that meets it, with the same tables.
"""

"""Commands that outlive their slice: watched, and begun again on a slice that is made anew.

What a slice is lives in `slices`, what runs on it in `work`; nothing here prints.
"""

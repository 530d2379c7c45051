"""Google's APIs behind two small protocols, and the one table of their errors.

No policy lives here: when to ask, again or at all, is decided by the callers.
"""

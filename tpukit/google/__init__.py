"""Google's APIs behind two small protocols, and the one table of their errors.

No policy lives here: callers decide when to ask, and whether to ask again.
"""

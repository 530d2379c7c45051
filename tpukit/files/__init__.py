"""Files on workers: copies and pushes, which send once, spread inside the zone, resume and verify.

The worker's half is in `agent`. Nothing here prints.
"""

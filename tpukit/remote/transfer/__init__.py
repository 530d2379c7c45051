"""Transfers to and from workers: they send once, spread inside the zone, resume and verify.

`work` decides the sources and destinations.
"""

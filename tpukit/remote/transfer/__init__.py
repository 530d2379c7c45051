"""Bytes to and from workers: sent once, spread inside the zone, resumed and verified.

What is sent, and where it goes, is decided in `work`.
"""

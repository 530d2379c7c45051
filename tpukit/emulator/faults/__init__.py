"""Faults on request, of the API and of workers: rules, presets, scenarios.

Nothing here acts by itself: the API and the workers ask whether a rule applies.
"""

"""Faults of the API and of workers on request: rules, presets, scenarios.

These modules only answer: the API and the workers ask them for the rule that applies.
"""

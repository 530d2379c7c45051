"""From nothing to a verified Cloud TPU in one command."""

__version__ = "0.1.0"

"""What all services work with: errors, the state and its file, the clock, a call.

No resource of an API lives here.
"""

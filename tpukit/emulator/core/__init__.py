"""The parts that all services share: errors, the state and its file, the clock, a call.

Code for one API's resources belongs in that API's service.
"""

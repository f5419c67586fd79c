"""The world in virtual time: clock, provider and machines that the controller cannot tell
from the real ones, with faults that can be injected.
"""

"""Chat sessions over the fleet.

Its modules are what others import: `chat` conducts sessions, `store` keeps them, `fleet_view` says what they need of
the fleet, `formatting` writes answers as a channel takes them.
"""

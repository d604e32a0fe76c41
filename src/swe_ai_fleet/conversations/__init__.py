"""Chat sessions over the fleet.

Callers import its modules: `chat` runs sessions, `store` stores them, `fleet_view` has the interface to the fleet,
`formatting` writes answers in the format of a channel.
"""

"""Repairs tool calls whose meaning is clear: their names, the JSON of their arguments, the types in it.

Each repair has a name, so that a trajectory shows the call as written and as run. Valid strings are never changed.
"""

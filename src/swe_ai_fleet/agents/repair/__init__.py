"""Repairs calls whose meaning is plain: their names, the JSON of their arguments, the types in them.

Each repair is named, so that a trajectory shows what the model wrote and what was made of it. None changes a string
that could be read as it stands.
"""

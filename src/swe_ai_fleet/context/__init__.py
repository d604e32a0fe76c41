"""Project knowledge: a graph folded from a stream of changes, and prompt blocks made of it.

Callers import its modules: `store` changes the graph, `gathering` and `rehydration` read it.
"""

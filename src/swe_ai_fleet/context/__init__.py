"""What projects know of themselves: a graph folded from a stream of changes, and prompt blocks made of it.

Its modules are what others import: `store` changes the graph, `gathering` and `rehydration` tell what is in it.
"""

"""A map of a repository: its definitions, those first that the rest of the code leans on.

`mapper` is the side of the fleet. All other modules run inside the workspace's sandbox, where this directory is a
package of its own (that is why its imports are relative) and nothing else of the fleet can be imported: parsing what
strangers wrote with parsers in C, and walking large trees, belongs neither into the fleet's event loop nor outside a
jail.
"""

"""Searching a repository's documents and history: BM25 over passages, exact phrases for names.

These modules run inside the workspace's sandbox, where this directory is a package of its own (that is why its imports
are relative) and nothing else of the fleet can be imported: reading and parsing what strangers wrote belongs neither
into the fleet's event loop nor outside a jail. `sub_agents.memory` is the side of the fleet.
"""

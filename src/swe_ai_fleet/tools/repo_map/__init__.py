"""A map of a repository: its definitions, most used first.

`mapper` runs in the fleet. All other modules run inside the workspace's sandbox, where this directory is a separate
package (hence its relative imports) and nothing else of the fleet can be imported: untrusted code is parsed by parsers
in C, and large trees are walked, neither of which belongs into the fleet's event loop or outside a sandbox.
"""

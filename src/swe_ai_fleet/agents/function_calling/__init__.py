"""Function calling: any functions, for a task or in a conversation, with the agent loop.

Its modules are imported by name: `caller` runs one task, `conversation` answers a conversation; the others are shared.
"""

"""Function calling: any functions, any task, over the one agent loop; and what goes with a conversation around it.

Its modules are imported by name: `caller` runs one task, `converse` a conversation, and the others are what both have
in common.
"""

"""Tools that are registered by name: classes, functions, plug-ins."""

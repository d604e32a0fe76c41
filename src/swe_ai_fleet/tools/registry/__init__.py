"""Tools that are registered by name: classes, functions, plug-ins. `swe_ai_fleet.tools` names what others use."""

"""`fleet mcp`: the fleet as tools for editors and other agents (Model Context Protocol)."""

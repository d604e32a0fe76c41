"""The fleet as tools for editors and other agents, over the Model Context Protocol."""

from swe_ai_fleet.extensions import Extension, entry

EXTENSION = Extension(
    commands={
        "mcp": entry(
            "extensions.mcp.commands:mcp",
            "Serve the fleet as MCP tools over standard input and output, for editors and other agents.",
            "fleet mcp",
            "fleet mcp --allow-approve --server fleet.example.org:50055",
        ),
    }
)

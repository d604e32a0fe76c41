"""The Model Context Protocol: the fleet as tools for editors, and tools of servers for its agents."""

from swe_ai_fleet.extension_registry import Extension, entry

EXTENSION = Extension(
    tools="client:McpPack",
    commands={
        "mcp": entry(
            "extensions.mcp.commands:mcp",
            "Serve the fleet as MCP tools over standard input and output, for editors and other agents.",
            "fleet mcp",
            "fleet mcp --allow-approve --server fleet.example.org:50055",
        ),
    },
)

"""E9, E12 and E14: built-in tools, one of a user's own, the names of all."""

import asyncio
import json
from pathlib import Path

from swe_ai_fleet.tools import BaseTool, ToolParameter, ToolRegistry


# E12
class CustomTool(BaseTool):
    @property
    def name(self) -> str:
        return "custom_tool"

    @property
    def description(self) -> str:
        return "Description of what the tool does"

    @property
    def parameters(self):
        return [ToolParameter(name="param1", type="string", description="Parameter description", required=True)]

    async def execute(self, param1: str):
        return {"result": f"Processed: {param1}"}


ToolRegistry.register_tool(CustomTool)


async def main():
    # E9
    tool = ToolRegistry.get_tool("calculator")
    result = await tool.execute(expression="2 + 2 * 3")
    print(json.dumps(result))
    tool = ToolRegistry.get_tool("python_executor")
    result = await tool.execute(code="result = sum([1, 2, 3, 4, 5])")
    print(json.dumps(result))
    tool = ToolRegistry.get_tool("web_search")
    result = await tool.execute(query="Python programming", num_results=5)
    print(json.dumps(result))
    tool = ToolRegistry.get_tool("file_reader")
    result = await tool.execute(file_path="example.txt", max_lines=100)
    print(json.dumps(result))
    # E12
    print(json.dumps(await ToolRegistry.get_tool("custom_tool").execute(param1="x")))
    print(json.dumps(ToolRegistry.get_tool_definitions(["custom_tool"])))


Path("example.txt").write_text("one\ntwo\n")
asyncio.run(main())
# E14
print(ToolRegistry._tools.keys())

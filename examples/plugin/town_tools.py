"""A tool for agents, as a plug-in: `pip install ./examples/plugin`, then `FLEET_PLUGINS=weather`."""

from __future__ import annotations

from swe_ai_fleet.tools import BaseTool, ToolParameter


class Weather(BaseTool):
    """What agents call `weather`."""

    name = "weather"
    description = "Today's weather of a town."
    parameters = (ToolParameter("town", "string", "Its name."),)
    read_only = True

    async def execute(self, town: str) -> dict[str, object]:
        return {"town": town, "weather": "fair"}

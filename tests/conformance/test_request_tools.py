"""An agent that asks for more tools in mid-run, over HTTP."""

from __future__ import annotations

import json

from swe_ai_fleet.adapters.openai_model import OpenAIChatModel
from swe_ai_fleet.testing import Script, ScriptedModelServer, Turn
from tests.conformance.replies import assert_well_formed, run_agent


async def test_what_was_asked_for_is_shown_from_the_next_request_on_and_nothing_moves() -> None:
    script = Script.of(
        Turn(tool_calls=(("request_tools", {"names": ["git_log", "git_blame"]}),)),
        Turn(tool_calls=(("git_log", {"limit": 1}), ("request_tools", {"names": "files_info"}))),
        Turn(tool_calls=(("final_answer", {"result": "Done."}),)),
    )
    async with ScriptedModelServer(script) as server, OpenAIChatModel(base_url=server.url) as model:
        ran = await run_agent(model, "Look back.")
        first, second, third = (body["tools"] for body in server.bodies[-3:])
    assert_well_formed(ran)
    assert ran.calls == [("git_log", {"limit": 1})]
    assert second[: len(first)] == first
    assert [tool["function"]["name"] for tool in second[len(first) :]] == ["git_log", "git_blame"]
    assert third == second
    names = [tool["function"]["name"] for tool in first]
    assert names[-2:] == ["request_tools", "final_answer"]
    assert "git_log(limit: integer = 20" in ran.told
    assert "no tool 'files_info' for this run. Did you mean files_file_info" in ran.told
    # A line each, not a schema each.
    assert len(json.dumps(first)) < 5_000

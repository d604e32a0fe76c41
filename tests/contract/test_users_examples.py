"""The users' examples A to C and E8 to E14, each a program; docs/behaviours.md says what differs from the text."""

from __future__ import annotations

import ast
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from swe_ai_fleet.testing import Conversation, Script, ScriptedModelServer, Turn
from swe_ai_fleet.testing.repositories import git, make_repository
from tests.conftest import FleetUnderTest
from tests.contract.example_program import printed, run_example
from tests.scripts import HELLO, HELLO_FILES, SCRIPT
from tests.search_server import SearchServer

_REPLY = {"entities": ["company_metrics"], "queries": ["current ARR"]}


def _call(name: str, **arguments: object) -> Turn:
    return Turn(tool_calls=((name, arguments),))


def _answer(text: str) -> Turn:
    return _call("final_answer", result=text)


_TOPIC = "https://en.wikipedia.org/wiki/Deep_learning"
CONVERSATIONS = (
    Conversation(match="5 times 7", turns=(_call("calculator", expression="5 * 7"), _answer("35"))),
    Conversation(match="this page about", turns=(_answer("It is about artificial intelligence."),)),
    Conversation(match="Caption this image", turns=(_answer("Agents at work."),)),
    Conversation(
        match="NVIDIA",
        turns=(
            _call("web_search", query="NVIDIA stock price"),
            _call("calculator", expression="5000 // 180"),
            _answer("27 shares."),
        ),
    ),
    Conversation(match="YouTube", turns=(_call("search_wikipedia", query="Deep learning"), _answer(f"See {_TOPIC}"))),
    Conversation(match="15 * 23 + 17", turns=(_call("calculator", expression="15 * 23 + 17"), _answer("362"))),
    Conversation(
        match="sum of squares",
        turns=(_call("python_executor", code="result = sum(n * n for n in range(1, 11))"), _answer("The sum is 385")),
    ),
    # The colour is known from the earlier exchange alone.
    Conversation(match="My favorite color is blue\nAssistant", turns=(_answer("Your favorite color is blue"),)),
    Conversation(match="What's my favorite color?", turns=(_answer("I do not know."),)),
    Conversation(match="My favorite color is blue", turns=(_answer("Noted."),)),
    Conversation(
        match="Read utils.py by plan",
        turns=(
            Turn(
                content=json.dumps(
                    {
                        "steps": [
                            {"tool": "files", "operation": "read_file", "params": {"path": "utils.py"}},
                            {"tool": "git", "operation": "status", "params": {}},
                        ]
                    }
                )
            ),
            _answer("Read."),
        ),
    ),
)


@pytest.fixture(scope="module")
async def server() -> AsyncGenerator[ScriptedModelServer]:
    async with ScriptedModelServer(
        Script(conversations=(*CONVERSATIONS, *SCRIPT.conversations), default=SCRIPT.default), keep=200
    ) as server:
        yield server


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "clone", HELLO_FILES | {"test_unit.py": _UNITTEST})


_UNITTEST = "import unittest\n\n\nclass T(unittest.TestCase):\n    def test_it(self):\n        pass\n"


class TestAgentsWithTools:
    """A."""

    @pytest.mark.slow  # quick: e2e/test_readme.py::test_the_library_example
    async def test_an_agent_its_tools_a_task_and_its_result(
        self, clone: Path, tmp_path: Path, warm: str, server: ScriptedModelServer
    ) -> None:
        # The text has the path of its workspace in full; relative to the program's directory it means the same.
        program = await run_example("a1_to_a4", "clone", directory=tmp_path, warm=warm, model_url=server.url)
        lines = dict(line.split(" ", 1) for line in printed(program).splitlines())
        assert lines["path"] == "True ['db', 'docker', 'files', 'git', 'http', 'tests']"
        assert int(lines["operations"]) >= 52
        assert (lines["git"], lines["files"]) == ("True ## main", 'True 1\t"""Small things."""')
        assert (lines["tests"][:4], lines["db"][:6]) == ("True", "False ")
        assert lines["result"] == "True ['success', 'operations', 'artifacts', 'audit_trail', 'error']"
        assert lines["success"] == "True None"
        assert lines["tools"] == "['files', 'git', 'tests']"
        assert lines["artifacts"] == "['utils.py'] 40 True"
        assert git(clone, "log", "-1", "--format=%H", "--", "utils.py") == git(clone, "rev-parse", "HEAD")
        # A5: what the model is told, and what it is asked.
        asked = next(body["messages"] for body in server.bodies if HELLO in json.dumps(body["messages"]))
        assert [message["role"] for message in asked[:2]] == ["system", "user"]

    @pytest.mark.slow  # quick: integration/test_planning.py::test_a_plan_is_carried_out_step_by_step_and_verified
    async def test_a_plan_is_parsed_and_carried_out_step_by_step(
        self, clone: Path, tmp_path: Path, warm: str, server: ScriptedModelServer
    ) -> None:
        # By a plan first, rather than choosing each next step, is a mode.
        program = await run_example(
            "a6", str(clone), directory=tmp_path, warm=warm, model_url=server.url, variables={"PLANNER_MODE": "simple"}
        )
        lines = printed(program).splitlines()
        assert lines[:2] == ["files read_file True", "git status True"]
        assert lines[-1] == "final_answer ['read_file', 'status']"

    @pytest.mark.slow  # quick: integration/test_ray_fleet.py, which runs the same actor
    async def test_actors_of_the_caller_s_own_ray(
        self, clone: Path, tmp_path: Path, model_server: ScriptedModelServer, fleet: FleetUnderTest
    ) -> None:
        second = make_repository(tmp_path / "second", HELLO_FILES)
        arguments = (fleet.running.nats_url, str(clone), str(second))
        program = await run_example("a7_a8", *arguments, directory=tmp_path, model_url=model_server.url)
        kinds = str(["str", "bool", "list", "dict", "list"])
        heard = ["True ['utils.py']", "examples-a7 True True True"]
        assert printed(program).splitlines() == [kinds, *heard] * 2

    @pytest.mark.slow  # quick: integration/test_deliberate_async.py
    async def test_a_fleet_is_not_waited_for(
        self, clone: Path, tmp_path: Path, model_server: ScriptedModelServer, fleet: FleetUnderTest
    ) -> None:
        program = await run_example(
            "a9", str(clone), directory=tmp_path, variables={"FLEET_HOME": str(fleet.settings.home)}
        )
        accepted = ast.literal_eval(printed(program))
        assert {name: accepted[name] for name in ("task_id", "status")} == {
            "task_id": "examples-a9",
            "status": "PENDING",
        }


class TestFunctionCalling:
    """B."""

    async def test_tasks_and_their_answers(
        self, tmp_path: Path, warm: str, server: ScriptedModelServer, search_server: SearchServer
    ) -> None:
        searched = len(search_server.asked)
        program = await run_example(
            "b1_to_b3",
            directory=tmp_path,
            warm=warm,
            model_url=server.url,
            variables={"FLEET_SEARCH_URL": search_server.url, "FLEET_WIKIPEDIA_URL": f"{search_server.url}/w/api.php"},
        )
        lines = printed(program).splitlines()
        said = [line.removeprefix(">>> agent.task.result=") for line in lines if "agent.task.result=" in line]
        assert said == [
            "'35'",
            "'It is about artificial intelligence.'",
            "'Agents at work.'",
            "'27 shares.'",
            f"'See {_TOPIC}'",
        ]
        steps = [line.rpartition("=")[2] for line in lines if "agent.task.steps_taken=" in line]
        assert steps == ["2", "1", "1", "3", "2"]
        responses = [ast.literal_eval(line) for line in lines if line.startswith("{")]
        finals = [response for response in responses if response["type"] == "final"]
        assert [(final["channel"], repr(final["value"])) for final in finals] == [("run", text) for text in said]
        # B4: what is logged, in the order of the text, in words of our own.
        first = responses[: responses.index(finals[0])]
        assert [response["metadata"]["event"] for response in first] == [
            "model_replied",
            "tool_finished",
            "model_replied",
        ]
        assert search_server.asked[searched:] == ["NVIDIA stock price"]
        # What the machine cannot reach is named to the model instead of being left out without a word.
        of_page = next(body for body in server.bodies if "this page about" in str(body["messages"][-1]["content"]))
        assert "wiki/Artificial_intelligence" in str(of_page["messages"][-1]["content"])
        assert of_page["temperature"] == 2


async def test_c1_to_c4_a_conversation_with_tools(tmp_path: Path, warm: str) -> None:
    said = "I will search your memory for..."
    turns = (Turn(content=said, tool_calls=(("search_memory", _REPLY),)), Turn(content="Nobody wrote that down."))
    async with ScriptedModelServer(Script(default=Conversation(turns=turns))) as model:
        out = printed(await run_example("c4_call_with_tools", directory=tmp_path, model_url=model.url, warm=warm))
        first, second = (body for body in model.bodies if body["messages"][0]["role"] == "system")
    called, told = out.splitlines()
    assert called == "search_memory ['company_metrics'] ['current ARR']"
    result: dict[str, Any] = json.loads(told)
    assert (result["final_text"], result["status"], result["iterations"]) == ("Nobody wrote that down.", "success", 2)
    assert [one["role"] for one in result["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    # The request carries system prompt, messages and tools, and leaves the choice to the model.
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    assert first.get("tool_choice", "auto") == "auto"
    assert [tool["function"]["name"] for tool in first["tools"]] == ["search_memory"]
    # The result is fed back once, under the call's id; not as JSON but in lines, which cost the model less.
    asked, answer = second["messages"][-2:]
    assert (answer["role"], answer["tool_call_id"]) == ("tool", asked["tool_calls"][0]["id"])
    assert answer["content"].startswith("coverage: 0")
    assert json.loads(asked["tool_calls"][0]["function"]["arguments"]) == _REPLY


class TestMemoryAndTools:
    """E8 to E14."""

    async def test_agents_with_memory_and_with_tools(
        self, tmp_path: Path, warm: str, server: ScriptedModelServer
    ) -> None:
        program = await run_example(
            "e8_e10_e11_e13",
            directory=tmp_path,
            warm=warm,
            model_url=server.url,
            variables={"FLEET_EMBEDDINGS": "none"},
        )
        *answers, switches = printed(program).splitlines()
        found = [ast.literal_eval(line) for line in answers]
        assert [one["answer"] for one in found] == ["Your favorite color is blue", "362", "The sum is 385"]
        assert [one["tools"] for one in found] == [[], ["calculator"], ["python_executor"]]
        assert switches == "True True False False"
        offered = next(body for body in server.bodies if "15 * 23 + 17" in str(body["messages"][-1]["content"]))
        assert {tool["function"]["name"] for tool in offered["tools"]} == {
            "calculator",
            "python_executor",
            "final_answer",
        }

    async def test_built_in_tools_and_one_of_a_users_own(
        self, tmp_path: Path, warm: str, search_server: SearchServer
    ) -> None:
        program = await run_example(
            "e9_e12_e14", directory=tmp_path, warm=warm, variables={"FLEET_SEARCH_URL": search_server.url}
        )
        *lines, keys = printed(program).splitlines()
        calculated, executed, found, read, own, (definition,) = map(json.loads, lines)
        assert calculated == {"result": 8, "expression": "2 + 2 * 3"}
        assert (executed["result"], executed["code"]) == (15, "result = sum([1, 2, 3, 4, 5])")
        assert not executed["output"]
        assert [one["title"] for one in found["results"]][:2] == ["The first one", "The second one"]
        assert read == {"content": "one\ntwo", "lines_read": 2}
        assert own == {"result": "Processed: x"}
        declared = definition["function"]["parameters"]
        assert (declared["properties"]["param1"]["type"], declared["required"]) == ("string", ["param1"])
        names = ast.literal_eval(keys.removeprefix("dict_keys(").removesuffix(")"))
        assert {"calculator", "python_executor", "web_search", "file_reader", "custom_tool"} < {*names}

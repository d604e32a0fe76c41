"""`fleet context`, `memory`, `rate`, `recommend` and what `run` does with them, as their users run them."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

from swe_ai_fleet.context.files import file_node
from swe_ai_fleet.testing.repositories import make_repository
from tests.fleet_command import Ran, Shell
from tests.memory_script import LESSON, RECALLS
from tests.scripts import HELLO_FILES

TASK = f"Say hello to the world in utils.py {RECALLS}"


@pytest.fixture(scope="module")
def name() -> str:
    """What ids and words of this run begin with: the fleet is everybody's."""
    return f"k{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True, kw_only=True)
class Learned:
    """Two runs of one task for a story, the second one with what the first one left; what they printed."""

    story: str
    namespace: str
    repository: Path
    first: Ran
    second: Ran


@pytest.fixture(scope="module")
async def learned(shell: Shell, name: str, tmp_path_factory: pytest.TempPathFactory) -> Learned:
    repository = make_repository(tmp_path_factory.mktemp("learned") / "repository", HELLO_FILES)
    story, namespace = f"{name}-S", f"repository:{name}"
    begun = await _each(
        shell,
        ("context", "story", story, "Greet the world"),
        ("context", "task", story, f"{name}-1", "The greeting", "--role", "DEV"),
    )
    assert [one.code for one in begun] == [0, 0]
    common = ("run", "--repo", str(repository), "--agents", "1", "--rounds", "0", "--story", story)
    memory = ("--recall", "--remember", "--namespace", namespace)
    first = await shell.fleet(*common, *memory, "--json", "--task-id", f"{name}-1", TASK)
    assert first.code == 0, first.err
    await _until(shell, LESSON, "memory", "recall", "hello_world", "--namespace", namespace)
    second = await shell.fleet(*common, *memory, "--task-id", f"{name}-2", TASK)
    assert second.code == 0, second.err
    return Learned(story=story, namespace=namespace, repository=repository, first=first, second=second)


async def _each(shell: Shell, *commands: tuple[str, ...], **variables: str) -> list[Ran]:
    """What each of many commands ends with, one after the other."""
    return [await shell.fleet(*command, **variables) for command in commands]


async def _until(shell: Shell, said: str, *command: str) -> Ran:
    """The command, once it says something: what has ended is recorded a moment later."""
    async with asyncio.timeout(60):
        while said not in (ran := await shell.fleet(*command)).out:
            pass
    return ran


async def test_show_and_watch_tell_what_agents_were_told(shell: Shell, learned: Learned, name: str) -> None:
    first = learned.first.document["context"]
    assert first["recalled"] == [] and first["tokens"] > 0
    assert "1 memory" in learned.second.err or "2 memories" in learned.second.err
    shown, watched, document = await _each(
        shell, ("show", f"{name}-2"), ("watch", f"{name}-2"), ("show", "--json", f"{name}-2")
    )
    assert f"recalled from {learned.namespace}: " in shown.out and LESSON in shown.out
    assert "context: " in watched.err and "tokens, " in watched.err
    second = document.document["context"]
    assert second["tokens"] > first["tokens"]
    assert learned.first.document["execution_id"] in {
        one["source"].removeprefix("execution:") for one in second["recalled"]
    }
    # Knowing where to look, it needed far less; whoever did not ask for it is told nothing.
    calls = learned.first.document["usage"]["model_calls"]
    assert document.document["usage"]["model_calls"] < calls / 2
    run = ("run", "--repo", str(learned.repository), "--agents", "1", "--rounds", "0", "--json")
    third = await shell.fleet(*run, "--task-id", f"{name}-3", TASK)
    assert third.code == 0, third.err
    assert (third.document["usage"]["model_calls"], third.document.get("context")) == (calls, None)


async def test_the_graph_has_what_the_runs_did(shell: Shell, learned: Learned, name: str) -> None:
    execution = learned.first.document["execution_id"]
    shown, as_json, related = await _each(
        shell,
        ("context", "show", learned.story, "--role", "DEV", "--query", "greeting"),
        ("context", "show", learned.story, "--json"),
        ("context", "relations", f"execution:{execution}", "--json"),
    )
    assert "Greet the world" in shown.out and "utils.py" in shown.out and execution[:8] in shown.out
    assert "the story at version 2" in shown.err
    assert (as_json.document["version"], len(as_json.document["version_hash"])) == (2, 64)
    relations = {(one["source"], one["kind"], one["target"]) for one in related.document["relations"]}
    here = f"execution:{execution}"
    assert {
        (here, "worked_on", f"story:{learned.story}"),
        (here, "changed", file_node(str(learned.repository), "utils.py")),
        (f"commit:{learned.first.document['commit']}", "part_of", here),
    } <= relations


async def test_people_rate_and_experience_recommends(shell: Shell, learned: Learned, name: str) -> None:
    rated = await shell.fleet("rate", f"{name}-1", "4", "--comment", "a word\x1b[2J too long")
    assert rated.code == 0, rated.err
    assert "a word" in rated.out and "\x1b[2J" not in rated.out
    assert learned.first.document["execution_id"] in rated.out and "rated 4 of 5" in rated.out and TASK in rated.out
    again = await shell.fleet("rate", learned.first.document["execution_id"], "2", "--json")
    assert (again.document["rating"], again.document["approach"], again.document["agents"]) == (2, "orchestrate", 1)
    assert again.document["rated_by"] and again.document["comment"].startswith("a word")
    options = ("recommend", TASK, "--repo", str(learned.repository), "--agents", "1", "--agents", "2")
    told, as_json = await _each(shell, options, (*options, "--json"))
    assert told.code == 0, told.err
    for shown in ("approach: ", "council: ", "model profile: ", "agents: "):
        assert shown in told.out
    document = as_json.document
    assert document["outcomes"] >= 1
    agents = {option["value"]: option["tried"] for option in document["agents"]["options"]}
    assert agents["1"] >= 0.9
    assert document["agents"]["value"] in agents
    assert "fleet run " in told.err and f"--agents {document['agents']['value']}" in told.err


async def test_what_is_wrong_with_memory_is_named_with_a_way_out(shell: Shell, learned: Learned) -> None:
    run = ("run", "--repo", str(learned.repository))
    for arguments, says, hints in (
        (("rate", "nobody", "3"), "no outcome", "fleet list"),
        ((*run, "--namespace", "fleet", "x"), "--namespace does nothing", "--recall"),
        ((*run, "--deliberate-only", "--story", "S", "x"), "story: it belongs to a delivery", ""),
        ((*run, "--recall", "--namespace", "here", "x"), "memory.namespaces[0]", ""),
    ):
        ran = await shell.fleet(*arguments, "--json")
        assert (ran.code, ran.document["exit_code"]) == (2, 2), (arguments, ran.out)
        error = ran.document["error"]
        assert says in f"{error['field']}: {error['message']}", (arguments, error)
        assert hints in error["hint"] + error["message"], (arguments, error)

"""`fleet context`, `memory`, `rate`, `recommend` and what `run` does with them, as their users run them."""

from __future__ import annotations

import asyncio
import json
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

from swe_ai_fleet.context.files import file_node
from swe_ai_fleet.testing.repositories import make_repository
from tests.conftest import FleetUnderTest
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
    # Knowing where to look, it needed far less.
    assert document.document["usage"]["model_calls"] < learned.first.document["usage"]["model_calls"] / 2


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


async def test_stories_tasks_and_decisions_by_hand(shell: Shell, name: str) -> None:
    story, task, decision = f"{name}-H", f"{name}-H1", f"{name}-D"
    begun, added, decided, late, moved, shown, related = await _each(
        shell,
        ("context", "story", story, "Log in", "--criterion", "a key fits", "--case", f"{name}-C"),
        ("context", "task", story, task, "The endpoint", "--role", "dev", "--json"),
        ("context", "decide", decision, "WebAuthn", "--story", story, "--why", "everywhere", "--affects", task),
        ("context", "phase", story, "design", "--expect", "2"),
        ("context", "phase", story, "design", "--expect", "3"),
        ("context", "show", story, "--role", "DEV"),
        ("context", "relations", f"task:{task}", "--depth", "2"),
    )
    assert (begun.code, begun.out) == (0, f"story {story} is in phase plan (version 1)\n")
    assert (added.document["version"], added.document["task"]["role"]) == (2, "dev")
    assert (decided.code, decided.out) == (0, f"decision {decision} is accepted (version 3)\n")
    assert late.code == 2 and "version 3" in late.err
    assert (moved.code, moved.out) == (0, f"story {story}: plan -> design (version 4)\n")
    for words in ("a key fits", "WebAuthn", "everywhere", "The endpoint"):
        assert words in shown.out
    assert f"decision:{decision} affects task:{task}" in related.out
    assert f"case:{name}-C contains story:{story}" in related.out


async def test_facts_are_told_found_and_forgotten(shell: Shell, name: str) -> None:
    namespace, fact = f"agent:{name}", f"Deploys of {name} happen on Tuesdays,\nnever on Fridays."
    here = ("--namespace", namespace)
    question = f"when do deploys of {name} happen"
    told, again, shown, none, as_json = await _each(
        shell,
        ("memory", "add", fact, *here, "--metadata", "topic=deploys"),
        ("memory", "add", fact, *here, "--metadata", "topic=deploys", "--json"),
        ("memory", "recall", question, *here),
        ("memory", "recall", question, *here, "--metadata", "topic=lunch"),
        ("memory", "recall", question, *here, "--metadata", "topic=deploys", "--kind", "fact", "--json"),
    )
    assert told.code == 0 and told.out.startswith("remembered: ")
    memory_id = told.out.split()[-1]
    assert again.document == {"memory_id": memory_id, "already_existed": True}
    assert "happen on Tuesdays,\n      never on Fridays." in shown.out
    assert namespace in shown.out and memory_id in shown.out
    assert (none.code, none.out) == (0, "") and "nothing that fits" in none.err
    (found,) = as_json.document["recollections"]
    assert (found["memory"]["text"], found["memory"]["metadata"]) == (fact, {"topic": "deploys"})
    gone, after = await _each(
        shell, ("memory", "clear", memory_id, *here), ("memory", "recall", question, *here, "--json")
    )
    assert (gone.code, gone.out) == (0, "forgotten: 1\n")
    assert after.document == {"recollections": []}


async def test_what_is_wrong_is_named_with_a_way_out(shell: Shell, learned: Learned, name: str) -> None:
    repository = str(learned.repository)
    attempts = (
        (("rate", f"{name}-nobody", "3"), "no outcome", "fleet list"),
        (("rate", str(uuid.uuid4()), "3"), "no outcome", "fleet show"),
        (("run", "--repo", repository, "--namespace", "fleet", "x"), "--namespace does nothing", "--recall"),
        (
            ("run", "--repo", repository, "--deliberate-only", "--story", "S", "x"),
            "story: it belongs to a delivery",
            "",
        ),
        (("run", "--repo", repository, "--recall", "--namespace", "here", "x"), "memory.namespaces[0]", ""),
        (("recommend", " "), "no goal given", ""),
        (("recommend", "x", "--role", "chef"), "'chef' is unknown", "architect"),
        (("context", "task", f"{name}-none", "T", "x"), "there is no story", "fleet context story"),
        (("context", "show", f"{name}-none"), "there is no story", "fleet context story"),
        (("context", "story", learned.story, "Another title"), "exists with other content", ""),
        (("context", "phase", learned.story, "done"), "cannot go to done", ""),
        (("context", "relations", "utils.py"), "is no node", "kind"),
        (("context", "relations", f"task:{name}-none"), "nothing is known", "story:S-1"),
        (("memory", "add", "x", "--namespace", "here"), "is no namespace", "repository:"),
        (("memory", "add", "x", "--metadata", "topic"), "is not K=V", ""),
        (("memory", "clear"), "no namespace given", "--everywhere"),
        (("memory", "recall", "x", "--kind", "rumour"), "'rumour' is unknown", "outcome"),
    )
    plain = ("context", "task", f"{name}-none", "T", "x")
    *ends, told, least = await _each(
        shell, *((*arguments, "--json") for arguments, _, _ in attempts), plain, ("rate", f"{name}-1", "0")
    )
    for (arguments, says, hints), ran in zip(attempts, ends, strict=True):
        assert (ran.code, ran.document["exit_code"]) == (2, 2), (arguments, ran.out)
        error = ran.document["error"]
        assert says in f"{error['field']}: {error['message']}", (arguments, error)
        assert hints in error["hint"] + error["message"], (arguments, error)
    assert (told.code, told.out) == (2, "") and "hint: `fleet context story" in told.err
    assert least.code == 2 and "rating" in least.err


async def test_no_context_service_is_3(shell: Shell, elsewhere: Shell, fleet: FleetUnderTest) -> None:
    commands = (("rate", "x", "3"), ("recommend", "x"), ("context", "show"), ("memory", "recall", "x"))
    for ran in await _each(elsewhere, *commands):
        assert (ran.code, ran.out) == (3, ""), ran.err
        assert "fleet up" in ran.err and "Traceback" not in ran.err
    recall, named = ("memory", "recall", "x"), ("--server", fleet.running.context)
    (unreached,) = await _each(elsewhere, (*recall, "--server", "127.0.0.1:1", "--json"))
    (wrong,) = await _each(elsewhere, (*recall, *named), FLEET_CONTEXT_TOKEN="wrong")
    (right,) = await _each(
        elsewhere,
        (*recall, "--json"),
        FLEET_CONTEXT_URL=fleet.running.context,
        FLEET_CONTEXT_TOKEN=fleet.running.context_token,
    )
    assert (unreached.code, unreached.document["exit_code"]) == (3, 3)
    assert "no context service answers at 127.0.0.1:1" in unreached.document["error"]["message"]
    assert wrong.code == 2 and "FLEET_CONTEXT_TOKEN" in wrong.err
    assert (right.code, json.loads(right.out).keys()) == (0, {"recollections"})

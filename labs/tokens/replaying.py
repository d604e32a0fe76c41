"""A recording replayed by a fleet as it is installed: `fleet run --local` of any built copy, from the outside.

Nothing of the measured fleet is imported: it is a program that talks to a model server, which keeps what it is sent.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labs.tokens.parts import observations, parts_of
from labs.tokens.recordings import Recording, make_example
from swe_ai_fleet.testing import Conversation, ScriptedModelServer, Turn
from swe_ai_fleet.testing.repositories import git
from swe_ai_fleet.testing.script import Script, ScriptRequest

SECONDS = 900.0
_WON = (0, 6)
"""How `fleet run` ends with a winner; 6: no test has shown that it is right."""
_AT_WORK = "files_edit_file"
"""Who has it is the agent that solves the task; others ask what the task demands."""


class Strayed(Exception):
    """A replay that went another way than the recording: its figures say nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What a fleet sent in one recording.

    Attributes:
        requests: Characters by part, a mapping for each request of the agent that solves the task.
        others: Characters by part of all further requests, such as those for a checklist of what the task demands.
        tree: The id of the tree that was delivered.
        bodies: The agent's requests themselves.
    """

    requests: Sequence[Mapping[str, int]]
    others: Sequence[Mapping[str, int]]
    tree: str
    bodies: Sequence[Mapping[str, Any]] = ()

    @property
    def characters(self) -> int:
        """What the agent's requests have together."""
        return sum(sum(request.values()) for request in self.requests)


async def replayed(recording: Recording, interpreter: Path) -> Replay:
    """The replay by the fleet of an interpreter. Raises Strayed."""
    with tempfile.TemporaryDirectory(prefix="fleet-tokens-") as name:
        directory = Path(name)
        repository = make_example(recording.repository, directory / "repository")
        async with ScriptedModelServer(_script(recording), keep=1_000) as server:
            printed, status = await _run(recording, interpreter, repository, directory / "home", server.url)
            bodies = server.bodies
        at_work = [body for body in bodies if _has(body, _AT_WORK)]
        others = [body for body in bodies if not _has(body, _AT_WORK) and "max_tokens" not in body]
        if len(at_work) < len(recording.replies):
            told = f"{len(at_work)} requests for {len(recording.replies)} replies"
            raise Strayed(f"{told}; fleet run ended with {status}: {printed[-2_000:]}")
        _expect_observations(recording, at_work)
        if status not in _WON:
            raise Strayed(f"fleet run ended with {status}: {printed[-2_000:]}")
        tree = git(repository, "rev-parse", f"fleet/{recording.name}^{{tree}}").strip()
    return Replay(
        requests=[parts_of(body, recording.task) for body in at_work],
        others=[parts_of(body, recording.task) for body in others],
        tree=tree,
        bodies=at_work,
    )


def _script(recording: Recording) -> Script:
    turns = tuple(
        Turn(content=reply.text, tool_calls=tuple((call.tool, call.arguments) for call in reply.calls))
        for reply in recording.replies
    )
    demand = {"requirements": [{"quote": recording.task.partition("\n")[0]}]}
    return Script(
        conversations=(Conversation(turns=turns, predicate=_works),),
        default=Conversation(turns=(Turn(tool_calls=(("final_answer", {"result": json.dumps(demand)}),)),)),
    )


def _works(request: ScriptRequest) -> bool:
    return _has(request.payload, _AT_WORK)


def _has(body: Mapping[str, Any], tool: str) -> bool:
    return any(one["function"]["name"] == tool for one in body.get("tools") or ())


async def _run(
    recording: Recording, interpreter: Path, repository: Path, home: Path, model: str
) -> tuple[str, int | None]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("FLEET_", "PYTHON"))}
    variables |= {"FLEET_HOME": str(home), "FLEET_MODEL_URL": model}
    process = await asyncio.create_subprocess_exec(
        str(interpreter.absolute().parent / "fleet"),
        *("run", recording.task, "--local", "--repo", str(repository), "--task-id", recording.name),
        *("--agents", "1", "--rounds", "0"),
        cwd=repository,
        env=variables,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(SECONDS):
            printed, _ = await process.communicate()
    except TimeoutError:
        raise Strayed(f"fleet run has not ended within {SECONDS:g} seconds") from None
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    return printed.decode(errors="replace"), process.returncode


def _expect_observations(recording: Recording, bodies: Sequence[Mapping[str, Any]]) -> None:
    for number, (reply, body) in enumerate(zip(recording.replies[:-1], bodies[1:], strict=False), start=1):
        seen = observations(body)
        if len(seen) != len(reply.calls):
            raise Strayed(f"reply {number} has {len(reply.calls)} calls and {len(seen)} observations")
        for call, text in zip(reply.calls, seen, strict=True):
            if call.shows and not re.search(call.shows, text):
                raise Strayed(f"reply {number}, {call.tool}: {call.shows!r} is not shown in: {text[:1_500]}")
            if text.startswith("Error:") and not call.shows:
                raise Strayed(f"reply {number}, {call.tool}: {text[:1_500]}")

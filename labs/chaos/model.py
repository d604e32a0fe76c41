"""The model of the chaos run: it goes by the conversation alone, and looks before it repeats what was interrupted.

`python -m labs.chaos.model --port 8000 --latency 0.2` serves it; killed and started again it goes on as before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from swe_ai_fleet.testing import Conversation, Script, ScriptedModelServer, Turn
from swe_ai_fleet.testing.script import ScriptRequest
from tests.reviewing import REVIEWER, accepting

NOTES = "notes.txt"
TOOLS = ("files_read_file", "files_append_file", "shell_run_command", "http_get", "http_post")
_SLOW_SECONDS = 0.4
"""How long the commands take that write some of the lines: long enough to be hit in the middle."""
_TASK = re.compile(r"\[(chaos[\w-]*): (\d+) lines, witness (http://[\w.:/-]+)\]")
_LINE = re.compile(r"chaos[\w-]* agent \d+ line (\d+)")
_LOST = "The machine that you worked on was lost"
_LOOK = Turn(tool_calls=(("files_read_file", {"path": NOTES}),))
_ACCEPT = Turn(tool_calls=(("final_answer", {"result": accepting("Every line is there once.")}),))


def description(task_id: str, lines: int, witness: str) -> str:
    """What the task says, and the model reads again."""
    return f"Write what is wanted to {NOTES}, and tell the witness once. [{task_id}: {lines} lines, witness {witness}]"


def line(task_id: str, agent: int, number: int) -> str:
    """The one line that a step of an agent writes."""
    return f"{task_id} agent {agent} line {number}"


@dataclass(kw_only=True)
class Known:
    """What an agent can know from its conversation; after a disturbance nothing, until it has looked."""

    lines: set[int] = field(default_factory=set[int])
    told: bool = False
    noted: bool = False
    file_seen: bool = True
    witness_seen: bool = True

    def disturb(self, *, file: bool, witness: bool) -> None:
        self.file_seen = self.file_seen and not file
        self.witness_seen = self.witness_seen and not witness

    def hear(self, name: str, arguments: Mapping[str, Any], content: str) -> None:
        """Take in what a call gave."""
        failed = content.startswith(("Error", "not carried out", "interrupted"))
        if name == "files_read_file" and not failed:
            self.lines = {int(number) for number in _LINE.findall(content)}
            self.file_seen = True
        elif name == "http_get" and not failed:
            self.told = "told once" in content
            self.witness_seen = True
        elif name in ("files_append_file", "shell_run_command"):
            self.disturb(file=failed, witness=False)
            if not failed:
                self.lines |= {int(number) for number in _LINE.findall(json.dumps(arguments))}
        elif name == "remember":
            self.noted = self.noted or not failed
        elif name == "http_post":
            self.disturb(file=False, witness=failed)
            self.told = self.told or not failed


def known(messages: list[dict[str, Any]]) -> Known:
    """What a conversation tells its agent of the world."""
    state = Known()
    calls: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for message in messages:
        content = str(message.get("content") or "")
        if message["role"] == "assistant":
            for call in message.get("tool_calls") or ():
                calls[call["id"]] = (call["function"]["name"], json.loads(call["function"]["arguments"]))
        elif message["role"] == "tool":
            name, arguments = calls.get(message["tool_call_id"], ("", {}))
            state.hear(name, arguments, content)
        elif _LOST in content:
            state.disturb(file=True, witness=False)
    return state


def lesson(task_id: str, agent: int) -> str:
    """What an agent notes for later runs, where it has a memory."""
    return f"The notes of {task_id} were taken by agent {agent}; nothing went wrong with them."


class Writer:
    """Stands where a `Script` does: one line a reply, in the middle one word to the witness, then the answer.

    Whoever is offered `remember` notes a lesson before that.
    """

    def choose(self, request: ScriptRequest) -> Conversation:
        """The next reply to a request."""
        return Conversation(turns=(self._turn(request),))

    def _turn(self, request: ScriptRequest) -> Turn:
        found = _TASK.search(request.opening)
        if found is None:
            return Turn(content="ready")
        if REVIEWER in request.opening:
            return _LOOK if request.turn == 0 else _ACCEPT
        task_id, lines, witness = found[1], int(found[2]), found[3]
        agent = request.seed or 0
        state = known(request.payload["messages"])
        place = f"{witness}/{task_id}/{agent}"
        looks = []
        if not state.file_seen:
            looks.append(("files_read_file", {"path": NOTES}))
        if not state.witness_seen:
            looks.append(("http_get", {"url": place}))
        if looks:
            return Turn(tool_calls=tuple(looks))
        missing = [number for number in range(1, lines + 1) if number not in state.lines]
        if not state.told and len(missing) < lines:
            return Turn(tool_calls=(("http_post", {"url": place, "body": "done"}),))
        if missing:
            return Turn(tool_calls=(_write(line(task_id, agent, missing[0]), slowly=missing[0] % 2 == 0),))
        if not state.noted and _offered(request, "remember"):
            return Turn(tool_calls=(("remember", {"fact": lesson(task_id, agent)}),))
        return Turn(tool_calls=(("final_answer", {"result": f"All {lines} lines are written."}),))


def _offered(request: ScriptRequest, name: str) -> bool:
    return any(tool["function"]["name"] == name for tool in request.payload.get("tools") or ())


def _write(text: str, *, slowly: bool) -> tuple[str, Mapping[str, Any]]:
    if slowly:
        return "shell_run_command", {"command": f"sleep {_SLOW_SECONDS}; echo '{text}' >> {NOTES}"}
    return "files_append_file", {"path": NOTES, "content": f"{text}\n"}


async def _serve(port: int, latency: float) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with ScriptedModelServer(cast("Script", Writer()), port=port, latency_seconds=latency) as server:
        print(server.url, flush=True)
        await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="chaos.model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--latency", type=float, default=0.2)
    options = parser.parse_args()
    asyncio.run(_serve(options.port, options.latency))


if __name__ == "__main__":
    main()

"""The model of a soak, as a program: `python -m labs.soak.model --port 8000 --latency 0.1`."""

from __future__ import annotations

import argparse
import asyncio
import signal

from swe_ai_fleet.testing import Conversation, Script, ScriptedModelServer, Turn
from tests.chat_script import said
from tests.plan_script import PLAN_CONVERSATIONS
from tests.reviewing import REVIEWER, accepting

WRITE, BIG, SLEEP, PROPOSE, FLOW, CHAT = (
    "[soak-write]",
    "[soak-big]",
    "[soak-sleep]",
    "[soak-propose]",
    "[soak-flow]",
    "how are things today",
)
NOTES = "notes.txt"


def _answer(text: str) -> Turn:
    return Turn(tool_calls=(("final_answer", {"result": text}),))


_LOOK = Turn(tool_calls=(("files_read_file", {"path": NOTES}),))
_APPEND = Turn(tool_calls=(("files_append_file", {"path": NOTES, "content": "one more line\n"}),))
_SHELL = Turn(tool_calls=(("shell_run_command", {"command": f"wc -l {NOTES}"}),))
_FLOOD = Turn(tool_calls=(("shell_run_command", {"command": "seq 1 80000"}),))
_PROPOSAL = Turn(
    tool_calls=(("propose_approach", {"approach": "Append a line.", "reasoning": "It is wanted."}),),
)

SCRIPT = Script(
    conversations=(
        Conversation(match=WRITE, regex=REVIEWER, turns=(_LOOK, _answer(accepting("The line is there.")))),
        Conversation(match=WRITE, turns=(_LOOK, _APPEND, _SHELL, _answer("Written."))),
        Conversation(match=BIG, turns=(_FLOOD, _APPEND, _answer("Counted."))),
        Conversation(
            match=SLEEP, turns=(Turn(tool_calls=(("shell_run_command", {"command": "sleep 300"}),)), _answer("Slept."))
        ),
        Conversation(match=PROPOSE, turns=(_LOOK, _PROPOSAL, _APPEND, _answer("Done as approved."))),
        Conversation(match=FLOW, turns=(_answer("A step is done."),)),
        *said(CHAT, Turn(tool_calls=(("calculator", {"expression": "6 * 7"}),)), Turn(content="Fine: 42.")),
        *PLAN_CONVERSATIONS,
    ),
    default=Conversation(turns=(Turn(content="Fine."),)),
)


async def _serve(port: int, latency: float) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with ScriptedModelServer(SCRIPT, port=port, latency_seconds=latency) as server:
        print(server.url, flush=True)
        await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="soak.model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--latency", type=float, default=0.1)
    options = parser.parse_args()
    asyncio.run(_serve(options.port, options.latency))


if __name__ == "__main__":
    main()

"""`make chaos` in small: an orchestrator, an agent's process and nats-server killed under a dozen executions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from labs.chaos.model import Writer, description, line
from labs.chaos.plan import Victim, strikes
from labs.chaos.report import markdown, summary
from labs.chaos.run import Phase, run_chaos
from swe_ai_fleet.agents.recorded_run import _LOST
from swe_ai_fleet.testing.script import ScriptRequest

VICTIMS = {Victim.ORCHESTRATOR: 1, Victim.ACTOR: 1, Victim.NATS: 1}


def test_a_seed_gives_the_same_strikes_again() -> None:
    assert strikes(7, 1, 100, VICTIMS) == strikes(7, 1, 100, VICTIMS)
    assert strikes(7, 1, 100, VICTIMS) != strikes(8, 1, 100, VICTIMS)
    planned = strikes(7, 1, 100, VICTIMS)
    assert [one.after for one in planned] == sorted(one.after for one in planned)
    assert sorted(one.victim for one in planned) == sorted(VICTIMS)


def _said(*exchanges: tuple[str, dict[str, str], str]) -> list[dict[str, Any]]:
    """A conversation of calls and what they gave."""
    messages: list[dict[str, Any]] = []
    for number, (name, arguments, content) in enumerate(exchanges):
        function = {"name": name, "arguments": json.dumps(arguments)}
        messages.append(
            {"role": "assistant", "content": None, "tool_calls": [{"id": str(number), "function": function}]}
        )
        messages.append({"role": "tool", "tool_call_id": str(number), "content": content})
    return messages


def _next(messages: list[dict[str, Any]]) -> list[str]:
    """The names of the calls that the model makes next."""
    opening = description("chaos-1", 3, "http://127.0.0.1:1/told")
    turn = sum(message["role"] == "assistant" for message in messages)
    request = ScriptRequest(opening=opening, turn=turn, seed=1, payload={"messages": messages})
    (said,) = Writer().choose(request).turns
    return [name for name, _ in said.tool_calls]


WRITTEN = ("files_append_file", {"content": line("chaos-1", 1, 1)}, "appended")
TOLD = ("http_post", {"url": "x"}, "thank you")


def test_the_model_looks_before_it_repeats_what_was_interrupted() -> None:
    interrupted = "Error: interrupted: the process that ran this call ended before the call did."
    slowly = ("shell_run_command", {"command": f"echo {line('chaos-1', 1, 2)}"}, interrupted)
    assert _next([]) == ["files_append_file"]
    assert _next(_said(WRITTEN)) == ["http_post"]
    assert _next(_said(WRITTEN, (*TOLD[:2], interrupted))) == ["http_get"]
    assert _next(_said(WRITTEN, (*TOLD[:2], interrupted), ("http_get", {}, "told once"))) == ["shell_run_command"]
    assert _next(_said(WRITTEN, TOLD, slowly)) == ["files_read_file"]
    everything = "\n".join(line("chaos-1", 1, number) for number in (1, 2, 3))
    assert _next(_said(WRITTEN, TOLD, slowly, ("files_read_file", {}, everything))) == ["final_answer"]
    lost = [*_said(WRITTEN, TOLD), {"role": "user", "content": _LOST.format(when="as it began", calls="- one")}]
    assert _next(lost) == ["files_read_file"]


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_dozen_executions_survive_three_kills() -> None:
    phase = Phase(name="own Ray each", executions=12, victims=VICTIMS)
    outcome = await run_chaos([phase], seed=3, width=6, latency=0.2, limit_seconds=180)
    assert outcome.proof.faults == [], markdown(outcome) + summary(outcome)
    assert outcome.proof.completed == outcome.proof.results == 12
    assert sorted(blow.victim for blow in outcome.blows) == sorted(VICTIMS)
    assert all(blow.recovered_seconds is None or blow.recovered_seconds >= 0 for blow in outcome.blows)
    assert outcome.proof.taken_over + outcome.proof.reassigned >= 1, "no kill hit anything at work"

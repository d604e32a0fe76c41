"""Pieces of text from several models, put together to lines."""

from __future__ import annotations

import json

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.speech import Speech


def piece(agent: str, text: str, *, begins: bool = False) -> pb.ExecutionEvent:
    return pb.ExecutionEvent(
        agent_id=agent, type="text_delta", payload_json=json.dumps({"agent_id": agent, "text": text, "begins": begins})
    )


def test_lines_of_two_models_do_not_mix() -> None:
    speech = Speech()
    assert speech.hear(piece("a", "I lo", begins=True)) == []
    assert speech.hear(piece("b", "Hm.\n", begins=True)) == ["b | Hm."]
    assert speech.hear(piece("a", "ok.\nThen")) == ["a | I look."]
    assert speech.rest("a") == ["a | Then"]
    assert speech.rest("a") == []
    speech.hear(piece("a", "broken", begins=True))
    assert speech.hear(piece("a", "anew\n", begins=True)) == ["a | broken", "a | anew"]
    # A line without an end is shown all the same.
    assert sum(line.count("x") for line in speech.hear(piece("a", "x" * 1000))) == 800

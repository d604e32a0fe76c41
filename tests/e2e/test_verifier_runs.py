"""A verifier model through the whole fleet: settings name it, a host asks it, its score decides and is told."""

from __future__ import annotations

import asyncio
import json
import math
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.adapters.context_service import ContextServiceClient
from swe_ai_fleet.domain.errors import NotFound
from swe_ai_fleet.domain.outcome import LEAST_RATING, VERIFIER_MODEL, VERIFIER_SCORE, Outcome
from swe_ai_fleet.learning.calibration import LEAST_OUTCOMES
from swe_ai_fleet.testing import Conversation, Script, ScriptedModelServer, Turn
from swe_ai_fleet.testing.repositories import make_repository
from tests.e2e.test_knowledge_restart import Up, fleet_up
from tests.scripts import HELLO_FILES, REVIEWED
from tests.trace_collector import TraceCollector

ONE, TWO = "agent-dev-1", "agent-dev-2"
NO = Turn(content="No", top_logprobs={"No": math.log(0.9), "Yes": math.log(0.1)})
YES = Turn(content="Yes", top_logprobs={"Yes": math.log(0.9), "No": math.log(0.1)})
VERIFIER = Script(conversations=(Conversation(match="+    return 'Hi'", turns=(NO,)), Conversation(turns=(YES,))))


async def deliberated(up: Up, repository: Path) -> tuple[pb.DeliberateResponse, list[dict[str, Any]]]:
    """Two candidates that pass the check, of which the smaller one is wrong: the reply, and what the log says."""
    request = pb.DeliberateRequest(
        task_id=f"scored-{uuid.uuid4().hex[:8]}",
        task_description=f"{REVIEWED} Add a function hello_world that returns 'Hello, World!'.",
        repo=pb.RepoRef(path=str(repository)),
        num_agents=2,
        enable_peer_review=False,
        constraints=pb.TaskConstraints(
            checks=[pb.CheckSpec(name="runs", command="python3 -c 'import utils; utils.hello_world()'")]
        ),
    )
    reply = await up.orchestrator.Deliberate(request, **up.call)
    stream = pb.StreamExecutionRequest(execution_id=reply.execution_id)
    events = [json.loads(one.payload_json) async for one in up.orchestrator.StreamExecution(stream, **up.call)]
    return reply, [one["score"] for one in events if one["type"] == "candidate_scored"]


@pytest.mark.slow  # quick: integration/test_score_runs.py and unit/test_verifier.py
async def test_the_better_of_two_wins_by_the_verifiers_score(
    model_server: ScriptedModelServer, collector: TraceCollector, tmp_path: Path
) -> None:
    repository = make_repository(tmp_path / "repository", HELLO_FILES)
    async with ScriptedModelServer(VERIFIER, model="checker") as checker:
        profiles = json.dumps({"verifier": {"url": checker.url, "model": "checker"}})
        more = {"FLEET_MODEL_PROFILES": profiles, "FLEET_OTLP_ENDPOINT": collector.url}
        async with fleet_up(tmp_path / "home", model_server.url, **more) as up:
            reply, scores = await deliberated(up, repository)
            assert reply.winner_id == TWO
            assert [(one.candidate_id, one.verifier_score) for one in reply.results] == [(TWO, 0.9), (ONE, 0.1)]
            assert reply.results[0].reason.endswith(f"ahead of {ONE}: verifier 0.90 against 0.10")
            assert [(one.purpose, one.runs, one.bought) for one in reply.expenses] == [
                ("drafts", 2, "2 candidates, 2 verified, 0 refuted"),
                ("scores", 2, "2 scores, 0.90 for the winner"),
            ]
            assert sum(one.usage.model_calls for one in reply.expenses) == reply.usage.model_calls
            assert sorted((one["model"], one["outcomes"]) for one in scores) == [("checker", 0)] * 2
            async with ContextServiceClient(up.card["context"], up.card["token"]) as context:
                learned = await disliked(context, reply.execution_id)
                others = [replace(learned, subject_id=f"old-{number}") for number in range(1, LEAST_OUTCOMES)]
                await asyncio.gather(*map(context.record_outcome, others))
            assert learned.metadata[VERIFIER_SCORE] == "0.900000"
            assert learned.metadata[VERIFIER_MODEL] == "checker"
            _, scores = await deliberated(up, repository)
            assert {one["outcomes"] for one in scores} == {LEAST_OUTCOMES}
            praised = max(scores, key=lambda one: one["raw"])
            assert praised["raw"] == pytest.approx(0.9)
            assert praised["score"] < 0.6


async def disliked(context: ContextServiceClient, execution_id: str) -> Outcome:
    """The outcome of an execution, rated as bad as can be once it is recorded, a moment after its end."""
    while True:
        try:
            return await context.rate(execution_id, LEAST_RATING)
        except NotFound:
            await asyncio.sleep(0.1)

"""Peer review through the whole fleet: reviews and a revision on Ray, told over gRPC, recorded on JetStream."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import grpc.aio
import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from swe_ai_fleet.codec import from_plain
from swe_ai_fleet.domain.audit import AuditEntry, verify
from swe_ai_fleet.testing.repositories import make_repository
from tests.conftest import FleetUnderTest
from tests.scripts import HELLO_FILES, REVIEWED

ONE, TWO = "agent-dev-1", "agent-dev-2"


@pytest.mark.slow  # quick: integration/test_review_runs.py, unit/test_peer_review.py
async def test_a_review_finds_what_the_checks_do_not(fleet: FleetUnderTest, tmp_path: Path) -> None:
    """Both candidates pass, and the smaller one is wrong: its reviewer shows the fault, its author mends it."""
    token = (("authorization", f"Bearer {fleet.running.token}"),)
    request = pb.DeliberateRequest(
        task_id=f"reviewed-{uuid.uuid4().hex[:8]}",
        task_description=f"{REVIEWED} Add a function hello_world that returns 'Hello, World!'.",
        repo=pb.RepoRef(path=str(make_repository(tmp_path / "repository", HELLO_FILES))),
        num_agents=2,
        rounds=1,
        constraints=pb.TaskConstraints(
            checks=[pb.CheckSpec(name="runs", command="python3 -c 'import utils; utils.hello_world()'")]
        ),
    )
    async with grpc.aio.insecure_channel(fleet.running.address) as channel:
        client = pb_grpc.OrchestratorServiceStub(channel)
        updates = [update async for update in client.StreamDeliberation(request, metadata=token, timeout=120)]
        reply = updates[-1].final
        asked = pb.GetExecutionRequest(execution_id=reply.execution_id)
        execution = (await client.GetExecution(asked, metadata=token)).execution
        stream = pb.StreamExecutionRequest(execution_id=reply.execution_id)
        events = [event async for event in client.StreamExecution(stream, metadata=token)]

    assert reply.status == pb.DELIBERATION_STATUS_COMPLETED
    assert reply.winner_id == ONE
    steps = list(dict.fromkeys(update.current_step for update in updates))
    assert [step for step in steps if step in ("solving", "reviewing", "revising")] == [
        "solving",
        "reviewing",
        "revising",
    ]
    percents = [update.progress_percent for update in updates]
    assert percents == sorted(percents) and percents[-1] == 100
    revised, other = reply.results
    (praise,) = other.critiques
    assert (praise.reviewer_id, praise.verdict, other.review_score) == (ONE, pb.VERDICT_ACCEPT, 1.0)
    assert (revised.candidate_id, revised.proposal.author_id, revised.revises) == (f"{ONE}-r1", ONE, ONE)
    # Who objected has looked again.
    (second,) = revised.critiques
    assert (second.reviewer_id, second.verdict, revised.review_score) == (TWO, pb.VERDICT_ACCEPT, 1.0)
    assert b"+    return 'Hello, World!'" in revised.patch.text
    assert b"'Hi'" not in revised.patch.text
    assert list(revised.proposal.revisions) == ["It greets."]
    (first,) = execution.superseded
    assert first.candidate_id == ONE
    assert b"'Hi'" not in first.patch.text  # by reference
    (blame,) = first.critiques
    (finding,) = blame.details
    assert (blame.reviewer_id, blame.verdict) == (TWO, pb.VERDICT_REVISE)
    assert (finding.file, finding.line, finding.must_fix) == ("utils.py", 9, True)
    assert (finding.proof.outcome, finding.proof.passes_on_own) == ("reproduced", True)
    assert "AssertionError" in finding.proof.seen
    assert blame.usage.model_calls == 2

    # The reviewer read a clone that had the candidate in it; its run is audited like every other.
    review = f"{TWO}-reviews-1"
    told = [json.loads(event.payload_json) for event in events if event.agent_id == review]
    looks = [body for body in told if body["type"] == "tool_finished"]
    assert "return 'Hi'" in looks[0]["result"]["content"]
    chain = [from_plain(AuditEntry, body["entry"]) for body in looks]
    (finished,) = [body for body in told if body["type"] == "run_finished"]
    assert verify(chain, head=finished["audit_head"]) is None
    assert {"candidate_reviewed", "revision_judged"} <= {event.type for event in events}
    assert reply.usage.model_calls == 6 * 2
    # What was spent on what; nothing is counted twice, nothing left out.
    assert [(one.purpose, one.runs, one.bought) for one in reply.expenses] == [
        ("drafts", 2, "2 candidates, 2 verified, 0 refuted"),
        ("reviews", 3, "3 reviews, 1 must-fix, 1 reproduced"),
        ("revisions", 1, "1 revision, 1 kept, one won"),
    ]
    assert sum(one.usage.model_calls for one in reply.expenses) == reply.usage.model_calls
    assert sum(one.usage.prompt_tokens for one in reply.expenses) == reply.usage.prompt_tokens

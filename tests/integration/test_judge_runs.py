"""Judges at work: over HTTP, in a real clone, recorded; only the model is scripted."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from swe_ai_fleet.adapters.git_workspace import GitWorkspaceProvider
from swe_ai_fleet.adapters.openai_model import OpenAIChatModel
from swe_ai_fleet.agents.equipment import Equipment
from swe_ai_fleet.agents.judging import JudgeRun
from swe_ai_fleet.agents.judging.run import ATTEMPTS
from swe_ai_fleet.agents.recorded_run import RunServices
from swe_ai_fleet.domain.audit import GENESIS
from swe_ai_fleet.domain.budget import Limits, Prices, Usage
from swe_ai_fleet.domain.candidate import Artifacts, Candidate, CheckReport, Perspective
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errand import JudgeAssignment
from swe_ai_fleet.domain.errors import Fenced
from swe_ai_fleet.domain.event import ModelReplied, RunClaimed, RunFinished
from swe_ai_fleet.domain.review import Critique, Vote
from swe_ai_fleet.domain.run import fold_run
from swe_ai_fleet.domain.task import Constraints, PinnedRepository, RepoRef, Role, Task, TaskKind
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.orchestrator.selection import rank
from swe_ai_fleet.sandbox import Sandbox, SandboxPolicy
from swe_ai_fleet.testing import Conversation, Failure, Script, ScriptedModelServer, Turn
from swe_ai_fleet.testing.fleet import PASSED
from swe_ai_fleet.testing.memory_log import MemoryLog
from swe_ai_fleet.testing.repositories import make_repository
from swe_ai_fleet.tools.secrets import Secrets

SECRET = "s3cr3t-of-the-installation"
PLAIN, GUARDED = b"+def total(xs):\n+    return sum(xs)\n", b"+def total(xs):\n+    return sum(xs or ())\n"


def says(text: str, **more: Any) -> Turn:
    return Turn(content=text, **more)


def chooses(letter: str, reason: str = "It guards empty input.") -> Turn:
    return says(f'{{"reason": "{reason}", "choice": "{letter}"}}')


def reading(text: str) -> tuple[Conversation, ...]:
    """Judges that look for the text and choose the candidate, of two, whose diff has it."""
    shown = rf"(?s)# Candidate A.*{text}.*# Candidate B"
    return (Conversation(regex=shown, turns=(chooses("A"),)), Conversation(turns=(chooses("B"),)))


# Only ballots are answered late, not the questions by which a server is got to know.
SLOW = Script(conversations=(Conversation(match="Candidate A", turns=(says("A", delay_seconds=30.0),)),))


@dataclass
class World:
    """A repository, a log, and candidates whose patches are in it."""

    provider: GitWorkspaceProvider
    repository: Path
    log: MemoryLog = field(default_factory=MemoryLog)

    async def judge(
        self,
        server: ScriptedModelServer,
        *patches: bytes,
        samples: int = 2,
        generation: int = 1,
        limits: Limits | None = None,
        critiques: tuple[Critique, ...] = (),
        kept: bool = True,
    ) -> tuple[Vote, ...]:
        repo = RepoRef(location=str(self.repository))
        constraints = Constraints(limits=limits or Limits())
        task = Task(
            task_id="t", kind=TaskKind.DELIBERATE, description="Add total()", repo=repo, constraints=constraints
        )
        pinned = await self.provider.pin(task.tenant, repo)
        names = [f"agent-dev-{number}" for number in range(1, len(patches) + 1)]
        assignment = JudgeAssignment(
            execution_id=task.execution_id,
            agent_id="judge-judges",
            judge_id="judge",
            task=task,
            repository=pinned,
            candidates=tuple([await self.candidate(*one, kept=kept) for one in zip(names, patches, strict=True)]),
            reports=tuple(CheckReport(candidate_id=name, results=(PASSED,)) for name in names),
            critiques=critiques,
            samples=samples,
            seed=7,
            perspective=Perspective(temperature=0.4),
            generation=generation,
        )
        async with (
            OpenAIChatModel(base_url=server.url, model="scripted") as model,
            self.clone(task, pinned) as clone,
        ):
            equipment = Equipment(
                models={"": model}, mask=Secrets([SECRET]), prices={"*": Prices(prompt=1.0, completion=1.0)}
            )
            services = RunServices(equipment=equipment, log=self.log, blobs=self.log, host="test")
            return await JudgeRun(services=services).carry_out(assignment, clone)

    @asynccontextmanager
    async def clone(self, task: Task, pinned: PinnedRepository) -> AsyncIterator[Any]:
        async with self.provider.open(task.execution_id, "judge-judges", pinned, Environment()) as clone:
            yield clone

    async def candidate(self, name: str, patch: bytes, *, kept: bool = True) -> Candidate:
        store = self.log if kept else MemoryLog()
        return Candidate(
            candidate_id=name,
            agent_id=name,
            role=Role.DEV,
            summary="Mine is the best.",
            stop_reason=StopReason.FINAL_ANSWER,
            artifacts=Artifacts(patch=await store.put("default", "e", patch, "text/x-diff"), insertions=2),
            usage=Usage(),
            audit_head="",
            submitted_at="",
        )

    def bodies(self, kind: type) -> list[Any]:
        return [event.body for event in self.log.events if isinstance(event.body, kind)]


@pytest.fixture
def world(tmp_path: Path) -> World:
    repository = make_repository(tmp_path / "repository", {"app.py": "a = 1\n"})
    provider = GitWorkspaceProvider(
        tmp_path / "home", Sandbox(SandboxPolicy()), allowed_roots=(tmp_path,), allow_local_paths=True
    )
    return World(provider=provider, repository=repository)


def ballot(body: dict[str, Any]) -> str:
    return body["messages"][1]["content"]


async def test_a_judge_finds_the_better_one_wherever_it_stands_and_is_recorded(world: World) -> None:
    async with ScriptedModelServer(Script(conversations=reading("xs or"))) as server:
        votes = await world.judge(server, PLAIN, GUARDED, samples=4)
        bodies = [body for body in server.bodies if "messages" in body][-4:]
    assert [vote.choice for vote in votes] == ["agent-dev-2"] * 4
    assert [vote.sample for vote in votes] == [1, 2, 3, 4]
    assert sorted(vote.order[0] for vote in votes) == ["agent-dev-1"] * 2 + ["agent-dev-2"] * 2
    assert {vote.reason for vote in votes} == {"It guards empty input."}
    assert all(vote.usage.model_calls == 1 and vote.usage.cost > 0 for vote in votes)
    for body, vote in zip(bodies, votes, strict=True):
        assert "tools" not in body
        assert (body["temperature"], body["seed"]) == (0.4, 7 + vote.sample)
        assert "agent-dev" not in str(body["messages"])
        assert "Mine is the best" not in ballot(body)
        assert (ballot(body).index("xs or") > ballot(body).index("sum(xs)\n")) == (vote.order[0] == "agent-dev-1")
    run = fold_run(world.log.events, "judge-judges")
    assert [message.content for message in run.messages[:2]] == [text["content"] for text in bodies[-1]["messages"]]
    assert run.finished is not None
    assert (run.finished.stop_reason, run.finished.audit_head) == (StopReason.FINAL_ANSWER, GENESIS)
    assert run.finished.usage.model_calls == 4
    assert run.finished.usage.cost == pytest.approx(sum(vote.usage.cost for vote in votes))


async def test_all_judges_of_all_ballots_have_one_system_message(world: World) -> None:
    """Model servers keep the work of a beginning that they have seen: nothing in it depends on what is judged."""
    async with ScriptedModelServer(Script.of(chooses("A"))) as server:
        await world.judge(server, PLAIN, GUARDED)
        world.log = MemoryLog()
        await world.judge(server, PLAIN, GUARDED, GUARDED.replace(b"()", b"[]"), samples=3)
        ballots = [body["messages"] for body in server.bodies if "Candidate A" in str(body.get("messages"))]
    assert len(ballots) == 5
    assert len({messages[0]["content"] for messages in ballots}) == 1
    for system, user in ballots:
        begin = re.search(r"<<<[0-9a-f]{16}", user["content"])
        assert begin is not None
        assert begin[0] not in system["content"]
        assert user["content"].index("printed by programs") < user["content"].index("# Task")


async def test_a_judge_that_always_takes_the_first_one_decides_nothing(world: World) -> None:
    async with ScriptedModelServer(Script.of(chooses("A"))) as server:
        votes = await world.judge(server, PLAIN, GUARDED, b"+third\n", samples=3)
    assert sorted(vote.choice for vote in votes) == ["agent-dev-1", "agent-dev-2", "agent-dev-3"]
    found = [await world.candidate(name, name.encode()) for name in ("agent-dev-1", "agent-dev-2", "agent-dev-3")]
    reports = {one.candidate_id: CheckReport(candidate_id=one.candidate_id, results=(PASSED,)) for one in found}
    ranking = rank(found, reports, votes=votes)
    assert {one.votes for one in ranking} == {round(1 / 3, 4)}
    assert [one.candidate_id for one in ranking] == [one.candidate_id for one in rank(found, reports)]


async def test_garbage_is_asked_for_once_more_and_kept_as_such(world: World) -> None:
    async with ScriptedModelServer(Script.of(says(f"Both are fine, says {SECRET}."))) as server:
        votes = await world.judge(server, PLAIN, GUARDED)
        asked = server.bodies[-1]["messages"]
    assert [(vote.choice, vote.usage.model_calls) for vote in votes] == [("", ATTEMPTS)] * 2
    assert all("names none of the candidates A, B" in vote.error for vote in votes)
    assert all(len(vote.order) == 2 for vote in votes)
    assert [message["role"] for message in asked] == ["system", "user", "assistant", "user"]
    assert "choice is one of A, B" in asked[-1]["content"]
    assert world.bodies(RunFinished)[0].stop_reason is StopReason.MALFORMED_REPLIES


async def test_a_second_reply_that_can_be_read_counts(world: World) -> None:
    async with ScriptedModelServer(Script.of(says("Let me think."), says("Choice: B"))) as server:
        votes = await world.judge(server, PLAIN, GUARDED)
    assert [vote.choice == vote.order[1] and not vote.error for vote in votes] == [True, True]
    assert [body.step for body in world.bodies(ModelReplied)] == [1, 2, 3, 4]


async def test_a_model_that_refuses_is_asked_once_and_its_votes_say_so(world: World) -> None:
    refusal = Failure(status=400, message=f"no such thing as {SECRET}", times=0)
    script = Script(conversations=(Conversation(match="Candidate A", turns=(refusal, chooses("A"))),))
    async with ScriptedModelServer(script) as server:
        votes = await world.judge(server, PLAIN, GUARDED, samples=4)
        asked = [body for body in server.bodies if "Candidate A" in str(body.get("messages"))]
    assert [vote.choice for vote in votes] == [""] * 4
    assert all("no such thing" in vote.error and SECRET not in vote.error for vote in votes)
    assert len(asked) == 1
    assert world.bodies(RunFinished)[0].stop_reason is StopReason.MODEL_ERROR


async def test_a_ballot_that_turns_out_too_long_is_cut_and_tried_again(world: World) -> None:
    limit = "This model's maximum context length is 100 tokens. However, your request has 200 input tokens."
    refused = Conversation(
        predicate=lambda request: len(request.opening) > 80_000, turns=(Failure(status=400, message=limit, times=0),)
    )
    script = Script(conversations=(refused, Conversation(turns=(chooses("A"),))))
    long = b"+" + b"long line " * 9_000 + b"\n"
    async with ScriptedModelServer(script) as server:
        votes = await world.judge(server, long, long + b"+x\n", samples=1)
        sizes = [len(ballot(body)) for body in server.bodies if "Candidate A" in str(body.get("messages"))]
    assert [vote.error for vote in votes] == [""]
    assert len(sizes) == 2
    assert sizes[1] < 0.6 * sizes[0]


async def test_large_diffs_are_cut_alike_to_fit_a_small_context(world: World) -> None:
    large, small = b"+" + b"many words " * 30_000 + b"\n", b"+small and whole\n"
    async with ScriptedModelServer(Script.of(chooses("B")), max_model_len=4_096) as server:
        votes = await world.judge(server, large, small, large + b"+y\n", samples=1)
        shown = ballot(server.bodies[-1])
    assert [vote.error for vote in votes] == [""]
    assert "+small and whole" in shown
    words = [part.count("many words") for part in shown.split("# Candidate ")[1:]]
    assert sorted(words)[0] == 0
    assert 50 < sorted(words)[1] <= sorted(words)[2] <= 1.2 * sorted(words)[1]


async def test_reviews_and_secrets_on_the_ballot(world: World) -> None:
    said = Critique(
        reviewer_id="agent-dev-9", candidate_id="agent-dev-1", round=1, score=0.123, content="Fails on an empty list."
    )
    async with ScriptedModelServer(Script.of(chooses("A", f"It prints {SECRET}"))) as server:
        leak = f"+print('{SECRET}')\n".encode()
        votes = await world.judge(server, PLAIN, leak, critiques=(said,), samples=1)
        shown = str(server.bodies[-1]["messages"])
    assert "Fails on an empty list." in shown
    assert all(hidden not in shown for hidden in (SECRET, "agent-dev", "0.123"))
    assert SECRET not in votes[0].reason


async def test_the_time_is_limited(world: World) -> None:
    async with ScriptedModelServer(SLOW) as server:
        judging = world.judge(server, PLAIN, GUARDED, samples=3, limits=Limits(timeout_seconds=0.5))
        votes = await asyncio.wait_for(judging, 20)
    assert [vote.choice for vote in votes] == ["", "", ""]
    assert all("no more than 0.5 seconds" in vote.error for vote in votes)


async def test_patches_that_are_gone_cannot_be_judged(world: World) -> None:
    async with ScriptedModelServer(Script.of(chooses("A"))) as server:
        votes = await world.judge(server, PLAIN, GUARDED, kept=False)
        assert server.requests == 0
    assert all(vote.error for vote in votes)


async def test_who_takes_over_hands_in_what_was_voted_and_asks_nobody_again(world: World) -> None:
    async with ScriptedModelServer(Script(conversations=reading("xs or"))) as server:
        first = await world.judge(server, PLAIN, GUARDED)
        asked = server.requests
        again = await world.judge(server, PLAIN, GUARDED, generation=2)
        assert server.requests == asked
        with pytest.raises(Fenced):
            await world.judge(server, PLAIN, GUARDED, generation=1)
    assert again == first
    assert [claim.resumes for claim in world.bodies(RunClaimed)] == [False, True]


async def test_a_judging_that_was_cut_off_begins_anew(world: World) -> None:
    async with ScriptedModelServer(SLOW) as server:
        task = asyncio.create_task(world.judge(server, PLAIN, GUARDED))
        async with asyncio.timeout(20):
            while not any("Candidate A" in str(body.get("messages")) for body in server.bodies):
                await server.wait_until(in_flight=1)
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert world.bodies(RunFinished)[-1].stop_reason is StopReason.CANCELLED
    async with ScriptedModelServer(Script(conversations=reading("xs or"))) as server:
        votes = await world.judge(server, PLAIN, GUARDED, generation=2)
    assert [vote.choice for vote in votes] == ["agent-dev-2"] * 2
    run = fold_run(world.log.events, "judge-judges")
    assert run.finished is not None
    assert run.finished.stop_reason is StopReason.FINAL_ANSWER

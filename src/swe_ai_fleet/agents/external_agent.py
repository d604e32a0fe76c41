"""External agents: the interface of an agent that is not the fleet's own, and a run of one.

Some are run by somebody else, behind an endpoint, and hand in a patch; others are programs that work in the workspace
itself. Both runs are recorded, bounded and handed in like a run of the fleet's own agents.
"""

from __future__ import annotations

import asyncio
import random
import shlex
from dataclasses import dataclass, field, replace
from typing import Protocol

from swe_ai_fleet.agents.coding_run import candidate_of, hand_in, handed_in, second_go
from swe_ai_fleet.agents.opening import ROLES, opening_messages
from swe_ai_fleet.agents.outside_record import AgentFault, OutsideRecord
from swe_ai_fleet.agents.prompting import rendered
from swe_ai_fleet.agents.recorded_run import resume, run_finished
from swe_ai_fleet.agents.spec import RunContext, RunServices
from swe_ai_fleet.domain.assignment import CodingAssignment
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Artifacts, Candidate
from swe_ai_fleet.domain.council import is_harness
from swe_ai_fleet.domain.errors import ModelError, PatchRejected, PreconditionFailed, ResourceExhausted
from swe_ai_fleet.domain.event import RunStarted
from swe_ai_fleet.domain.message import UserMessage
from swe_ai_fleet.domain.text import now
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.ports import BlobStore, Clone, ResultBus
from swe_ai_fleet.tools.pipeline import ToolLimits


class AgentBusy(AgentFault):
    """It takes no more tasks now, and may later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedIn:
    """What an external agent leaves; all of it untrusted, its own count of what it spent too.

    A `patch` is against the base commit; one that works in the clone leaves its changes there instead. With the stop
    reason `awaiting_approval` nothing is handed in yet.
    """

    patch: bytes = b""
    summary: str = ""
    usage: Usage = field(default_factory=Usage)
    stop: StopReason = StopReason.FINAL_ANSWER
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handout:
    """What an external agent is given, and where it is written down what it does.

    `prompt` is the task in words. A clone that it works in holds the author's earlier work where there is a revision.
    """

    assignment: CodingAssignment
    clone: Clone
    prompt: str
    record: OutsideRecord
    blobs: BlobStore

    async def revised_patch(self) -> bytes:
        """What a revision begins with; empty where there is nothing. Raises NotFound, Unavailable."""
        revision = self.assignment.revision
        ref = revision.candidate.artifacts.patch if revision is not None else None
        return await self.blobs.get(ref) if ref is not None else b""


class OutsideAgent(Protocol):
    """The way to external agents; `in_place` says whether they work in the clone."""

    @property
    def in_place(self) -> bool: ...

    async def describe(self, endpoint: str) -> str:
        """The name under which the agent's work is shown. Raises AgentFault."""
        ...

    async def solve(self, endpoint: str, handout: Handout) -> HandedIn:
        """Let the agent work; what it says goes into the record. A cancellation ends its work.

        Raises AgentFault, AgentBusy, PreconditionFailed, ResourceExhausted.
        """
        ...


MAX_PATCH_BYTES = 16 * 1024 * 1024
MAX_BUNDLE_BYTES = 64 * 1024 * 1024
MAX_NAME_CHARS = 100
_FAULT_CHARS = 2_000
_LONGEST_PAUSE_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class ExternalRun:
    """Runs assignments whose perspective names an endpoint.

    Attributes:
        services: What runs share.
        results: Hears of the result.
        outside: The way to agents that somebody else runs.
        harnesses: The way to those that work in the workspace.
        pause_seconds: How long to wait for an agent that is busy, the first time; longer each time after that.
    """

    services: RunServices
    results: ResultBus
    outside: OutsideAgent
    harnesses: OutsideAgent
    pause_seconds: float = 2.0

    async def run(self, assignment: CodingAssignment, clone: Clone) -> Candidate:
        """Let the agent solve the task, and hand in what the clone then holds, whatever ended the work.

        What the agent does wrong is told by the candidate. A lost run of an agent behind an endpoint begins anew; one
        in the workspace goes on from what was kept of that, in a new process of its own.

        Raises Fenced, Unavailable; a cancellation passes after it was recorded, and ends the agent's work.
        """
        async with self.services.claimed(assignment, clone) as run:
            if (known := handed_in(assignment, run)) is not None:
                return known
            return await self._hand_in(assignment, clone, run)

    async def _hand_in(self, assignment: CodingAssignment, clone: Clone, run: RunContext) -> Candidate:
        agents = self._agents(assignment.perspective.endpoint)
        left = HandedIn(stop=StopReason.MODEL_ERROR)
        limit = assignment.task.constraints.limits.timeout_seconds
        record = OutsideRecord(run, model="external")
        try:
            async with run.clock.limit(max(0.0, limit - run.earlier.usage.duration_ms / 1000)):
                left = await self._work(agents, assignment, clone, record)
        except TimeoutError:
            timeout_error = f"the limit of {limit:g} seconds was reached"
            left = replace(
                left, stop=StopReason.TIMEOUT, error="; ".join(filter(None, (timeout_error, record.waiting)))
            )
        except PatchRejected as fault:
            left = replace(left, error=f"the agent's patch does not apply: {fault}")
        except (AgentFault, ModelError, ResourceExhausted, PreconditionFailed) as fault:
            left = replace(left, error=str(fault))
        usage = record.spent
        if left.stop is StopReason.AWAITING_APPROVAL:
            return candidate_of(assignment, run_finished(run.trail, left.stop, usage), model=record.model, at=now())
        diff = await clone.diff()
        if agents.in_place and diff.files:
            record.record_diff(diff)
        finished = run_finished(
            run.trail,
            left.stop,
            usage,
            artifacts=Artifacts(
                commit_sha=clone.base_commit,
                patch=await self.services.keep_patch(assignment, diff.patch),
                files_changed=diff.files,
                insertions=diff.insertions,
                deletions=diff.deletions,
            ),
            answer=record.answer,
            error=record.masked(left.error, _FAULT_CHARS),
        )
        log = self.services.log
        return await hand_in(assignment, run, finished, diff.patch, model=record.model, log=log, results=self.results)

    def _agents(self, endpoint: str) -> OutsideAgent:
        return self.harnesses if is_harness(endpoint) else self.outside

    async def _work(
        self, agents: OutsideAgent, assignment: CodingAssignment, clone: Clone, record: OutsideRecord
    ) -> HandedIn:
        """From the first call to the changes in the clone. Raises as `solve` does, PatchRejected."""
        endpoint, task, run = assignment.perspective.endpoint, assignment.task, record.run
        record.model = record.masked(await agents.describe(endpoint), MAX_NAME_CHARS)
        prompt = (
            await self._prepared(assignment, clone, run) if agents.in_place else run.equipment.mask(task.description)
        )
        if run.earlier.started is None or not agents.in_place:
            run.begin(
                RunStarted(
                    role=task.role,
                    model=record.model,
                    messages=(UserMessage(content=prompt),),
                    tools=(),
                    temperature=assignment.perspective.temperature,
                    seed=assignment.perspective.seed,
                    environment=clone.environment.key,
                )
            )
        handout = Handout(assignment=assignment, clone=clone, prompt=prompt, record=record, blobs=self.services.blobs)
        left = await self._ask(agents, endpoint, handout)
        if len(left.patch) > MAX_PATCH_BYTES:
            raise AgentFault(f"the agent's patch has more than {MAX_PATCH_BYTES} bytes")
        if left.patch and not task.enable_tools:
            raise AgentFault("the agent hands in changes where only an answer is wanted")
        if left.stop is not StopReason.AWAITING_APPROVAL:
            record.conclude(left.summary or record.answer, left.usage)
        if not agents.in_place:
            await clone.apply(left.patch)
        return left

    async def _ask(self, agents: OutsideAgent, endpoint: str, handout: Handout) -> HandedIn:
        """What the agent hands in, asked again while it is busy."""
        pause = self.pause_seconds
        while True:
            try:
                left = await agents.solve(endpoint, handout)
                handout.record.waiting = ""
                return left
            except AgentBusy as busy:
                handout.record.waiting = str(busy)
                await asyncio.sleep(random.uniform(pause / 2, pause))  # noqa: S311
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _prepared(self, assignment: CodingAssignment, clone: Clone, run: RunContext) -> str:
        """The clone as the run goes on in it, and the task in words for an agent that works there."""
        task, environment, keeper = assignment.task, clone.environment, run.keeper
        _, opening = opening_messages(
            task,
            workspace=clone,
            limits=ToolLimits(),
            perspective=assignment.perspective,
            background=assignment.background,
        )
        prompt = rendered(
            "harness",
            role_article=ROLES[task.role],
            mount=clone.mount,
            read_only=not task.enable_tools,
            test_command=shlex.join(environment.test_command),
            notes=environment.notes,
            task=opening.content,
        )
        # A checkpoint has the work that is revised in it.
        if assignment.revision is not None and run.earlier.checkpoint is None:
            again = await second_go(assignment, assignment.revision, clone, self.services)
            prompt = f"{prompt}\n\n{again.text}"
        if keeper is not None:
            keeper.max_bytes = assignment.checkpoint_bytes
            run.earlier = await resume(run.earlier, keeper, self.services.blobs)
        return run.equipment.mask(prompt)

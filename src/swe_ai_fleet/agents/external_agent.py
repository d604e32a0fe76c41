"""External agents: the interface of an agent that somebody else runs, and a run of one.

Such a run is recorded, bounded and handed in like a run of our own.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Protocol

from swe_ai_fleet.agents.coding_run import hand_in, handed_in
from swe_ai_fleet.agents.recorded_run import run_finished
from swe_ai_fleet.agents.spec import RunContext, RunServices
from swe_ai_fleet.domain.assignment import CodingAssignment
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Artifacts, Candidate, Diff
from swe_ai_fleet.domain.errors import FleetError, PatchRejected, PreconditionFailed, ResourceExhausted
from swe_ai_fleet.domain.event import ModelReplied, RunStarted
from swe_ai_fleet.domain.integration import RepositoryBundle
from swe_ai_fleet.domain.message import AssistantMessage, ModelReply, UserMessage
from swe_ai_fleet.domain.text import well_formed
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.ports import Clone, ResultBus
from swe_ai_fleet.tools.truncation import beginning


class AgentFault(FleetError):
    """An agent that somebody else runs cannot be reached, refuses, or answers what is no answer."""


class AgentBusy(AgentFault):
    """It takes no more tasks now, and may later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handout:
    """What an outside agent is given. A `revised_patch` goes with an assignment that has a revision."""

    assignment: CodingAssignment
    repository: RepositoryBundle
    revised_patch: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What an outside agent says that it does: untrusted text, of any length."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedIn:
    """What an outside agent leaves; all of it untrusted, its own count of what it spent too."""

    patch: bytes
    summary: str = ""
    usage: Usage = field(default_factory=Usage)


class OutsideAgent(Protocol):
    """The way to agents that somebody else runs."""

    async def describe(self, endpoint: str) -> str:
        """The name of the agent that answers there. Raises AgentFault."""
        ...

    def solve(self, endpoint: str, handout: Handout) -> AsyncGenerator[Said | HandedIn, None]:
        """What the agent says, and last what it hands in. Closing the generator cancels its work.

        Raises AgentFault, AgentBusy.
        """
        ...


MAX_PATCH_BYTES = 16 * 1024 * 1024
MAX_BUNDLE_BYTES = 64 * 1024 * 1024
MAX_KEPT_MESSAGES = 200
MAX_MESSAGES = 5_000
MAX_MESSAGE_CHARS = 4_000
MAX_SUMMARY_CHARS = 16_000
MAX_NAME_CHARS = 100
_FAULT_CHARS = 2_000
_LONGEST_PAUSE_SECONDS = 30.0


@dataclass(slots=True, kw_only=True)
class _Work:
    """What is known of a run while it goes on."""

    model: str
    started_at: float
    steps: int = 0
    usage: Usage = field(default_factory=Usage)
    answer: str = ""
    waiting: str = ""


@dataclass(frozen=True, kw_only=True)
class ExternalRun:
    """Runs assignments whose perspective names an endpoint.

    Attributes:
        services: What runs share.
        results: Hears of the result.
        outside: The way to the agents.
        pause_seconds: How long to wait for an agent that is busy, the first time; longer each time after that.
    """

    services: RunServices
    results: ResultBus
    outside: OutsideAgent
    pause_seconds: float = 2.0

    async def run(self, assignment: CodingAssignment, clone: Clone) -> Candidate:
        """Let the agent solve the task, put its patch into the clean clone, and hand in what the clone then holds.

        Whatever the agent does wrong is a candidate without changes that says so. A run that was lost begins anew.
        Raises Fenced, Unavailable; a cancellation passes after it was recorded, and the agent's call is cancelled.
        """
        async with self.services.claimed(assignment, clone) as run:
            if (known := handed_in(assignment, run)) is not None:
                return known
            return await self._hand_in(assignment, clone, run)

    async def _hand_in(self, assignment: CodingAssignment, clone: Clone, run: RunContext) -> Candidate:
        stop, error = StopReason.FINAL_ANSWER, ""
        limit = assignment.task.constraints.limits.timeout_seconds
        work = _Work(model="external", started_at=time.monotonic())
        diff = Diff(patch=b"")
        try:
            async with asyncio.timeout(limit):
                await self._work(assignment, clone, run, work)
            diff = await clone.diff()
        except TimeoutError:
            stop, error = StopReason.TIMEOUT, f"the limit of {limit:g} seconds was reached"
            error = f"{error}; {work.waiting}" if work.waiting else error
        except PatchRejected as fault:
            stop, error = StopReason.MODEL_ERROR, f"the agent's patch does not apply: {fault}"
        except (AgentFault, ResourceExhausted, PreconditionFailed) as fault:
            stop, error = StopReason.MODEL_ERROR, str(fault)
        finished = run_finished(
            run.trail,
            stop,
            replace(work.usage, duration_ms=_milliseconds_since(work.started_at)),
            artifacts=Artifacts(
                commit_sha=clone.base_commit,
                patch=await self.services.keep_patch(assignment, diff.patch),
                files_changed=diff.files,
                insertions=diff.insertions,
                deletions=diff.deletions,
            ),
            answer=work.answer,
            error=self._shown(error, _FAULT_CHARS),
        )
        log, patch = self.services.log, diff.patch
        return await hand_in(assignment, run, finished, patch, model=work.model, log=log, results=self.results)

    async def _work(self, assignment: CodingAssignment, clone: Clone, run: RunContext, work: _Work) -> None:
        """From the first call to the patch in the clone. Raises AgentFault, PatchRejected, ResourceExhausted."""
        endpoint, task = assignment.perspective.endpoint, assignment.task
        work.model = f"external:{self._shown(await self.outside.describe(endpoint), MAX_NAME_CHARS)}"
        run.begin(
            RunStarted(
                role=task.role,
                model=work.model,
                messages=(UserMessage(content=self.services.equipment.mask(task.description)),),
                tools=(),
                temperature=assignment.perspective.temperature,
                seed=assignment.perspective.seed,
                environment=clone.environment.key,
            )
        )
        handout = await self._handout(assignment, clone)
        pause = self.pause_seconds
        while True:
            try:
                handed_in = await self._ask(endpoint, handout, run, work)
                break
            except AgentBusy as busy:
                work.waiting = str(busy)
                await asyncio.sleep(random.uniform(pause / 2, pause))  # noqa: S311
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        work.waiting = ""
        if len(handed_in.patch) > MAX_PATCH_BYTES:
            raise AgentFault(f"the agent's patch has more than {MAX_PATCH_BYTES} bytes")
        if handed_in.patch and not task.enable_tools:
            raise AgentFault("the agent hands in changes where only an answer is wanted")
        self._note(Said(text=handed_in.summary), run, work, usage=handed_in.usage, limit=MAX_SUMMARY_CHARS)
        await clone.apply(handed_in.patch)

    async def _ask(self, endpoint: str, handout: Handout, run: RunContext, work: _Work) -> HandedIn:
        """One call, to its result."""
        heard = 0
        async with aclosing(self.outside.solve(endpoint, handout)) as answers:
            async for answer in answers:
                if isinstance(answer, HandedIn):
                    return answer
                heard += 1
                if heard > MAX_MESSAGES:
                    raise AgentFault(f"the agent said more than {MAX_MESSAGES} things")
                if work.steps < MAX_KEPT_MESSAGES:
                    self._note(answer, run, work)
        raise AgentFault("the agent ended without a result")

    async def _handout(self, assignment: CodingAssignment, clone: Clone) -> Handout:
        repository = await clone.bundle(max_bytes=MAX_BUNDLE_BYTES)
        revised = b""
        if assignment.revision is not None and (ref := assignment.revision.candidate.artifacts.patch) is not None:
            revised = await self.services.blobs.get(ref)
        return Handout(assignment=assignment, repository=repository, revised_patch=revised)

    def _note(
        self,
        said: Said,
        run: RunContext,
        work: _Work,
        *,
        usage: Usage | None = None,
        limit: int = MAX_MESSAGE_CHARS,
    ) -> None:
        """Record what the agent says as a step of its own."""
        work.steps += 1
        text = self._shown(said.text, limit)
        if usage is not None:
            work.usage, work.answer = usage, text
        reply = ModelReply(
            message=AssistantMessage(content=text), finish_reason="stop", usage=usage or Usage(), model=work.model
        )
        run.post(ModelReplied(step=work.steps, reply=reply, duration_ms=_milliseconds_since(work.started_at)))

    def _shown(self, text: str, limit: int) -> str:
        # Secrets are looked for in more than is shown: a cut could hide one from the mask.
        return beginning(self.services.equipment.mask(well_formed(text[: 2 * limit])), limit)


def _milliseconds_since(started_at: float) -> int:
    return round((time.monotonic() - started_at) * 1000)

"""External agents: the interface of agents that are not the fleet's own, their runs, and their records in the log.

Some are remote, behind an endpoint, and submit a patch; others are programs that work in the workspace itself. The runs
of both are recorded, limited and submitted like those of the fleet's own agents.
"""

from __future__ import annotations

import asyncio
import json
import random
import shlex
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.coding_run import CandidateRun, candidate_of, submitted_before
from swe_ai_fleet.agents.opening import ROLES, opening_messages
from swe_ai_fleet.agents.prompting import rendered
from swe_ai_fleet.agents.recorded_run import resume, run_finished
from swe_ai_fleet.agents.run_deps import RunContext
from swe_ai_fleet.domain.assignment import CodingAssignment
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Artifacts, Candidate, Diff
from swe_ai_fleet.domain.council import is_harness
from swe_ai_fleet.domain.errors import FleetError, ModelError, PatchRejected, PreconditionFailed, ResourceExhausted
from swe_ai_fleet.domain.event import ModelReplied, RunStarted
from swe_ai_fleet.domain.message import AssistantMessage, ModelReply, ToolCall, UserMessage
from swe_ai_fleet.domain.text import now, well_formed
from swe_ai_fleet.domain.tool import OperationSpec, PolicyDecision, ToolResult
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.ports import BlobStore, Clone
from swe_ai_fleet.tools.pipeline import ToolLimits
from swe_ai_fleet.tools.truncation import beginning

MAX_KEPT_MESSAGES = 200
MAX_MESSAGES = 5_000
MAX_MESSAGE_CHARS = 4_000
MAX_SUMMARY_CHARS = 16_000
MAX_CALL_CHARS = 4_000
HARNESS = "harness"
"""The tool in audit entries about what an agent in the workspace does by itself, requests, and changes."""
OWN_WORD = "by the agent's own word: no tool of the fleet carried it out"
_MOST_FILES = 200
MAX_PATCH_BYTES = 16 * 1024 * 1024
MAX_BUNDLE_BYTES = 64 * 1024 * 1024
MAX_NAME_CHARS = 100
_FAULT_CHARS = 2_000
_LONGEST_PAUSE_SECONDS = 30.0


class AgentFault(FleetError):
    """An external agent cannot be reached or started, refuses, ends too early, or gives an invalid answer."""


class OutsideRecord:
    """Records each text and each call of an external agent as a step of its run, bounded and masked."""

    def __init__(self, run: RunContext, *, model: str) -> None:
        self.run, self.model = run, model
        self.usage, self.answer, self.waiting = Usage(), "", ""
        self.budget: Budget | None = None
        """Counts the usage of an agent whose model calls go through the fleet; None: the agent reports its usage."""
        self.paths: set[str] = set()
        """Files that the agent announced to change, relative to the repository."""
        self.step = len(run.earlier.steps)
        self._messages = 0
        self._recorded_usage = run.earlier.usage
        self._started_at = time.monotonic()

    @property
    def duration_ms(self) -> int:
        return round((time.monotonic() - self._started_at) * 1000)

    @property
    def spent(self) -> Usage:
        return self.budget.total() if self.budget else replace(self.usage, duration_ms=self.duration_ms)

    def say(self, text: str) -> None:
        """Record a text of the agent at work. Raises AgentFault beyond `MAX_MESSAGES`."""
        self._messages += 1
        if self._messages > MAX_MESSAGES:
            raise AgentFault(f"the agent said more than {MAX_MESSAGES} things")
        if self._messages <= MAX_KEPT_MESSAGES:
            self._reply(AssistantMessage(content=self.masked(text, MAX_MESSAGE_CHARS)))

    def conclude(self, summary: str, usage: Usage) -> None:
        """Record the agent's last text, and the usage that it reports."""
        self.usage, self.answer = usage, self.masked(summary, MAX_SUMMARY_CHARS)
        self._reply(AssistantMessage(content=self.answer), usage)

    def call(self, name: str, arguments: Mapping[str, object], *, text: str = "", call_id: str = "") -> ToolCall:
        """Record a step with one call after the agent's text; the caller records the result."""
        call_id = call_id or uuid.uuid4().hex[:12]
        written = self.masked(json.dumps(arguments, ensure_ascii=False, default=str), MAX_CALL_CHARS)
        call = ToolCall(call_id=call_id, model_call_id=call_id, name=name, arguments=written)
        self._reply(AssistantMessage(content=self.masked(text, MAX_MESSAGE_CHARS), tool_calls=(call,)))
        return call

    def tell(
        self,
        operation: str,
        arguments: Mapping[str, str],
        result: ToolResult,
        *,
        call_id: str = "",
        decision: PolicyDecision = PolicyDecision.ALLOWED,
        reason: str = OWN_WORD,
    ) -> None:
        """Record in the audit chain something that the agent did by itself, or requested."""
        name = f"{HARNESS}_{operation}"
        spec = OperationSpec(name=name, tool=HARNESS, operation=operation, description="", parameters={})
        masked_arguments = {key: self.masked(value, MAX_CALL_CHARS) for key, value in arguments.items()}
        result = replace(
            result,
            operation=name,
            content=self.masked(result.content, MAX_SUMMARY_CHARS),
            error=self.masked(result.error, MAX_CALL_CHARS),
        )
        self.run.trail.open(spec, arguments=masked_arguments, secret=arguments, call_id=call_id).close(
            result, decision, reason
        )

    def record_diff(self, diff: Diff) -> None:
        """Record the final changes on disk, and which of them the agent never announced."""
        silent = [path for path in diff.files if path not in self.paths][:_MOST_FILES]
        summary = f"not spoken of: {', '.join(silent)}" if silent else "all of it was spoken of"
        arguments = {"files": ", ".join(diff.files[:_MOST_FILES])}
        result = ToolResult(success=True, operation="", content=summary, metadata={"silent": silent})
        self.tell("left", arguments, result, reason="as the fleet found the clone")

    def masked(self, text: str, limit: int) -> str:
        # Masked before the cut, which could hide a part of a secret from the mask.
        return beginning(self.run.deps.mask(well_formed(text[: 2 * limit])), limit)

    def _reply(self, message: AssistantMessage, usage: Usage | None = None) -> None:
        self.step += 1
        if self.budget is not None:
            # The usage of model calls since the last step; tool calls are counted by their results.
            total, recorded = self.budget.usage, self._recorded_usage
            names = ("prompt_tokens", "completion_tokens", "cached_tokens", "model_calls", "cost")
            usage = Usage(**{name: getattr(total, name) - getattr(recorded, name) for name in names})
            self._recorded_usage = total
        reply = ModelReply(
            message=message,
            finish_reason="tool_calls" if message.tool_calls else "stop",
            usage=usage or Usage(),
            model=self.model,
        )
        self.run.post(ModelReplied(step=self.step, reply=reply, duration_ms=self.duration_ms))


class AgentBusy(AgentFault):
    """The agent takes no more tasks now, but may later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedIn:
    """The submission of an external agent; all of it is untrusted, its reported usage too.

    A `patch` is against the base commit; an agent that works in the clone leaves its changes there instead. With the
    stop reason `awaiting_approval`, nothing is submitted yet.
    """

    patch: bytes = b""
    summary: str = ""
    usage: Usage = field(default_factory=Usage)
    stop: StopReason = StopReason.FINAL_ANSWER
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handout:
    """The input of an external agent, and the record of its work; `prompt` is the task in words."""

    assignment: CodingAssignment
    clone: Clone
    prompt: str
    record: OutsideRecord
    blobs: BlobStore

    async def revised_patch(self) -> bytes:
        """The patch to be revised; empty if there is none. Raises NotFound, Unavailable."""
        revision = self.assignment.revision
        ref = revision.candidate.artifacts.patch if revision is not None else None
        return await self.blobs.get(ref) if ref is not None else b""


class OutsideAgent(Protocol):
    """Connects to external agents; `in_place` says whether they work in the clone."""

    @property
    def in_place(self) -> bool: ...

    async def describe(self, endpoint: str) -> str:
        """The agent's name, shown as the model of its runs. Raises AgentFault."""
        ...

    async def solve(self, endpoint: str, handout: Handout) -> HandedIn:
        """Have the agent solve the task; its texts go into the record. A cancellation ends its work.

        Raises AgentFault, AgentBusy, PreconditionFailed, ResourceExhausted.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class ExternalRun(CandidateRun):
    """Runs assignments whose perspective names an endpoint.

    A busy agent is asked again after `pause_seconds`, then at growing intervals. `harnesses` is None where no extension
    runs any.
    """

    outside: OutsideAgent
    harnesses: OutsideAgent | None
    pause_seconds: float = 2.0

    async def run(self, assignment: CodingAssignment, clone: Clone) -> Candidate:
        """Have the agent solve the task, and submit the changes in the clone, however the work ended.

        Faults of the agent are errors of the candidate. A lost run of a remote agent starts over; an agent in the
        workspace is started anew there, from the last checkpoint.

        Raises Fenced, Unavailable; a cancellation passes after it was recorded, and ends the agent's work.
        """
        async with self.recorder.claimed(assignment, clone) as run:
            if (submitted := submitted_before(assignment, run)) is not None:
                return submitted
            return await self._solved(assignment, clone, run)

    async def _solved(self, assignment: CodingAssignment, clone: Clone, run: RunContext) -> Candidate:
        agents = self.harnesses if is_harness(assignment.perspective.endpoint) else self.outside
        submission = HandedIn(stop=StopReason.MODEL_ERROR)
        limit = assignment.task.constraints.limits.timeout_seconds
        record = OutsideRecord(run, model="external")
        try:
            async with run.clock.limit(max(0.0, limit - run.earlier.usage.duration_ms / 1000)):
                submission = await self._work(agents, assignment, clone, record)
        except TimeoutError:
            timeout_error = f"the limit of {limit:g} seconds was reached"
            submission = replace(
                submission, stop=StopReason.TIMEOUT, error="; ".join(filter(None, (timeout_error, record.waiting)))
            )
        except PatchRejected as fault:
            submission = replace(submission, error=f"the agent's patch does not apply: {fault}")
        except (AgentFault, ModelError, ResourceExhausted, PreconditionFailed) as fault:
            submission = replace(submission, error=str(fault))
        usage = record.spent
        if submission.stop is StopReason.AWAITING_APPROVAL:
            return candidate_of(
                assignment, run_finished(run.trail, submission.stop, usage), model=record.model, at=now()
            )
        diff = await clone.diff()
        if agents is not None and agents.in_place and diff.files:
            record.record_diff(diff)
        finished = run_finished(
            run.trail,
            submission.stop,
            usage,
            artifacts=Artifacts(
                commit_sha=clone.base_commit,
                patch=await self.recorder.keep_patch(assignment, diff.patch),
                files_changed=diff.files,
                insertions=diff.insertions,
                deletions=diff.deletions,
            ),
            answer=record.answer,
            error=record.masked(submission.error, _FAULT_CHARS),
        )
        return await self.submit(assignment, run, finished, diff.patch, model=record.model)

    async def _work(
        self, agents: OutsideAgent | None, assignment: CodingAssignment, clone: Clone, record: OutsideRecord
    ) -> HandedIn:
        """Have the agent work until its changes are in the clone. Raises as `solve` does, PatchRejected."""
        endpoint, task, run = assignment.perspective.endpoint, assignment.task, record.run
        if agents is None:
            raise AgentFault("there are no harnesses here: the extension `acp` was removed")
        record.model = record.masked(await agents.describe(endpoint), MAX_NAME_CHARS)
        prompt = await self._prepared(assignment, clone, run) if agents.in_place else run.deps.mask(task.description)
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
        handout = Handout(assignment=assignment, clone=clone, prompt=prompt, record=record, blobs=self.recorder.blobs)
        submission = await self._ask(agents, endpoint, handout)
        if len(submission.patch) > MAX_PATCH_BYTES:
            raise AgentFault(f"the agent's patch has more than {MAX_PATCH_BYTES} bytes")
        if submission.patch and not task.enable_tools:
            raise AgentFault("the agent hands in changes where only an answer is wanted")
        if submission.stop is not StopReason.AWAITING_APPROVAL:
            record.conclude(submission.summary or record.answer, submission.usage)
        if not agents.in_place:
            await clone.apply(submission.patch)
        return submission

    async def _ask(self, agents: OutsideAgent, endpoint: str, handout: Handout) -> HandedIn:
        """The agent's submission; it is asked again while it is busy."""
        pause = self.pause_seconds
        while True:
            try:
                submission = await agents.solve(endpoint, handout)
                handout.record.waiting = ""
                return submission
            except AgentBusy as busy:
                handout.record.waiting = str(busy)
                await asyncio.sleep(random.uniform(pause / 2, pause))  # noqa: S311
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _prepared(self, assignment: CodingAssignment, clone: Clone, run: RunContext) -> str:
        """Prepare the clone for an agent that works there; its prompt."""
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
        if (revision := await self.revision_prompt(assignment, run, clone)) is not None:
            prompt = f"{prompt}\n\n{revision.text}"
        if keeper is not None:
            keeper.max_bytes = assignment.checkpoint_bytes
            run.earlier = await resume(run.earlier, keeper)
        return run.deps.mask(prompt)

"""One peer's review of some candidates: the one loop, with an answer in a fixed shape at its end, and proofs tried."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from swe_ai_fleet.agents.agent_run import AgentRun, Rules, RunParts
from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.history import History
from swe_ai_fleet.agents.loop_guard import LoopGuard
from swe_ai_fleet.agents.prompting import LETTERS, ballot_order
from swe_ai_fleet.agents.recorded_run import RecordedRun, RunServices, concluded, read_run
from swe_ai_fleet.agents.reviewing.answer import ReviewAnswer, answer_shape, no_review, read_answer, review_of
from swe_ai_fleet.agents.reviewing.prompt import branch, review_messages
from swe_ai_fleet.agents.reviewing.proving import Proving, may_run
from swe_ai_fleet.agents.solving import policy_of
from swe_ai_fleet.agents.sub_agents.exploring import SPENT, offered, said_in
from swe_ai_fleet.agents.sub_agents.structured_output import schema_of
from swe_ai_fleet.agents.toolbox import Toolbox, final_answer_in
from swe_ai_fleet.codec import to_json
from swe_ai_fleet.domain.assignment import ReviewAssignment
from swe_ai_fleet.domain.budget import Limits
from swe_ai_fleet.domain.candidate import Artifacts
from swe_ai_fleet.domain.errors import InvalidRequest, ModelError, NotFound, PatchRejected
from swe_ai_fleet.domain.event import MessageAdded, ModelReplied, RunFinished, RunStarted
from swe_ai_fleet.domain.message import ModelRequest, Sampling, UserMessage
from swe_ai_fleet.domain.review import Review
from swe_ai_fleet.domain.run import RunState
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.ports import ChatModel, Clone, EvidenceWorkspaces
from swe_ai_fleet.tools.files import FileTool
from swe_ai_fleet.tools.files.paths import Tree
from swe_ai_fleet.tools.git import GitTool
from swe_ai_fleet.tools.operation import Toolkit
from swe_ai_fleet.tools.pipeline import Pipeline, ToolLimits
from swe_ai_fleet.tools.shell import ShellTool
from swe_ai_fleet.tools.tests import TestTool

MAX_ITERATIONS = 8
MAX_TOOL_CALLS = 24
MAX_SECONDS = 600.0
"""A review is a look, not a piece of work: so much at most, and no more than the task allows its agents."""

LOOKING = (
    "files_read_file", "files_search_in_files", "files_list_files", "files_repo_map", "git_status", "git_diff",
    "git_log", "git_show",
)  # fmt: skip
RUNNING = ("files_read_file", "files_search_in_files", "tests_run", "shell_run_command")
"""What is offered where reviewers may run something: a shell shows all else. Their clone is thrown away."""
AGAIN = "That is not the review that was asked for: {problem}. Answer with that JSON object and nothing else."
_OBSERVATION_CHARS = 8_000
_FINAL_PROMPT_SECONDS = 30.0
_UNTOUCHED = "untouched"


@dataclass(frozen=True, kw_only=True)
class ReviewRun:
    """Carries out `ReviewAssignment`s, each recorded like every run."""

    services: RunServices
    workspaces: EvidenceWorkspaces

    async def carry_out(self, assignment: ReviewAssignment, clone: Clone) -> Review:
        """One peer's review, in a clean clone with the changes of one candidate, or with a branch for each of several.

        An answer that cannot be read, faults of the model and spent limits are critiques with an error. A review that
        an earlier process began goes on where its log leaves off; one that had ended is handed in again.

        Raises Fenced, Unavailable; a cancellation passes after it was recorded.
        """
        task, resumes = assignment.task, assignment.generation > 1
        async with self.services.recorded(assignment, resumes=resumes) as run:
            await run.journal.flush()
            earlier = RunState(agent_id=assignment.agent_id)
            if resumes:
                earlier = await read_run(self.services.log, task.tenant, assignment.execution_id, assignment.agent_id)
                if (known := concluded(earlier, Review)) is not None:
                    return known
                run.trail.entries.extend(earlier.entries)
            proving = Proving(
                assignment=assignment,
                workspaces=self.workspaces,
                blobs=self.services.blobs,
                environment=clone.environment,
                mask=self.services.equipment.mask,
            )
            return await _Review(self.services, assignment, clone, run, earlier, proving).carry_out()


class _Review:
    """One review under way."""

    def __init__(
        self,
        services: RunServices,
        assignment: ReviewAssignment,
        clone: Clone,
        run: RecordedRun,
        earlier: RunState,
        proving: Proving,
    ) -> None:
        self._services = services
        self._assignment = assignment
        self._clone = clone
        self._journal, self._trail = run.journal, run.trail
        self._earlier = earlier
        self._proving = proving
        self._policy = policy_of(assignment.task)
        self._may_run = may_run(assignment.task, self._policy)
        self._mask = services.equipment.mask
        self._budget = Budget(limits_of(assignment.task.constraints.limits), spent=earlier.usage)
        self._sampling = Sampling(temperature=assignment.perspective.temperature, seed=assignment.perspective.seed)
        self._stop = StopReason.MODEL_ERROR
        by_id = {subject.candidate.candidate_id: subject for subject in assignment.subjects}
        self._shown = [by_id[name] for name in ballot_order(list(by_id), assignment.seed, sample=1)]
        self._schema = schema_of(answer_shape(self._shown))

    async def carry_out(self) -> Review:
        """Review, and record the end."""
        assignment, shown = self._assignment, self._shown
        error = ""
        try:
            said = await self._answer()
        except (ModelError, InvalidRequest, NotFound, ValueError) as fault:
            review = no_review(assignment, shown, str(fault), mask=self._mask, usage=self._budget.total())
            error = review.critiques[0].error
        else:
            tree = Tree(self._clone.root, self._clone.mount)
            self._stop = StopReason.FINAL_ANSWER
            review = await asyncio.to_thread(
                review_of, said, assignment, shown, tree=tree, mask=self._mask, usage=self._budget.total()
            )
            review = await self._proving.tried(review) if self._may_run else review
        finished = RunFinished(
            stop_reason=self._stop,
            artifacts=Artifacts(),
            usage=self._budget.total(),
            audit_head=self._trail.head,
            answer=to_json(review).decode(),
            error=error,
        )
        await self._journal.append(finished)
        return review

    async def _answer(self) -> ReviewAnswer:
        """What the reviewer says. Raises ValueError saying why it says nothing that can be used, ModelError."""
        equipment, task = self._services.equipment, self._assignment.task
        model = equipment.model(task, self._assignment.perspective, self._trail)
        capabilities = await model.probe()
        limits = self._budget.limits
        self._budget = Budget(limits, prices=equipment.price(capabilities.model), spent=self._earlier.usage)
        pipeline = Pipeline(
            trail=self._trail,
            policy=self._policy,
            mask=self._mask,
            limits=ToolLimits(
                command_timeout_seconds=limits.command_timeout_seconds, observation_chars=_OBSERVATION_CHARS
            ),
            cache=equipment.cache(task),
        )
        toolbox = _toolbox(self._clone, pipeline, self._schema, runs=self._may_run)
        await self._open(toolbox, capabilities.model, capabilities.max_model_len)
        history = History(self._earlier.messages, context_tokens=capabilities.max_model_len)
        parts = RunParts(
            model=model,
            toolbox=toolbox,
            history=history,
            budget=self._budget,
            rules=Rules(max_reminders=0, max_tool_errors=6, answer_at_limit=True),
            journal=self._journal,
            guard=LoopGuard(toolbox.specs, earlier=self._earlier.steps),
            sampling=self._sampling,
            steps=self._earlier.steps,
        )
        trajectory = await AgentRun(parts).drive()
        self._stop = trajectory.stop_reason
        try:
            return read_answer(self._shown, *said_in(trajectory))
        except ValueError as error:
            if trajectory.stop_reason in SPENT or not trajectory.steps:
                raise ValueError(trajectory.error or str(error)) from None
            return await self._once_more(model, history, len(trajectory.steps), str(error))

    async def _open(self, toolbox: Toolbox, model: str, context_tokens: int) -> None:
        """Apply the patches; where the conversation has not begun, begin it."""
        assignment = self._assignment
        patches = {
            subject.candidate.candidate_id: await self._services.blobs.get(ref)
            for subject in self._shown
            if (ref := subject.candidate.artifacts.patch) is not None
        }
        applied = await self._lay_out(patches)
        if self._earlier.started is not None:
            return
        opening = review_messages(
            assignment,
            self._shown,
            patches,
            applied=applied,
            may_run=self._may_run,
            iterations=self._budget.limits.max_iterations,
            context_tokens=context_tokens,
            mask=self._mask,
        )
        started = RunStarted(
            role=assignment.task.role,
            model=model,
            messages=opening,
            tools=tuple(spec.name for spec in toolbox.specs),
            temperature=assignment.perspective.temperature,
            seed=assignment.perspective.seed,
            environment=self._clone.environment.key,
        )
        self._journal.post(started)
        self._earlier = replace(self._earlier, started=started, messages=opening)

    async def _lay_out(self, patches: Mapping[str, bytes]) -> frozenset[str]:
        """Apply the one patch, or commit each to a branch of its own, the first one checked out; the ids applied."""
        applied: list[str] = []
        several = len(self._shown) > 1
        if several:
            await self._clone.apply(b"", branch=_UNTOUCHED)
        for letter, subject in reversed(list(zip(LETTERS, self._shown, strict=False))):
            name = subject.candidate.candidate_id
            try:
                await self._clone.apply(patches.get(name, b""), branch=branch(letter) if several else "")
            except PatchRejected:
                continue
            applied.append(name)
        return frozenset(applied)

    async def _once_more(self, model: ChatModel, history: History, steps: int, problem: str) -> ReviewAnswer:
        """The answer to a last request for the shape alone. Raises ValueError, ModelError."""
        ask = UserMessage(content=AGAIN.format(problem=problem))
        history.add(ask)
        self._journal.post(MessageAdded(step=steps, message=ask))
        left, room, began = self._budget.tokens_left, history.room, time.monotonic()
        bound = left if left is not None and (room is None or left < room * 3 // 4) else None
        try:
            async with asyncio.timeout(min(_FINAL_PROMPT_SECONDS, self._budget.seconds_left)):
                reply = await model.reply(
                    ModelRequest(history.messages, (), replace(self._sampling, max_tokens=bound), schema=self._schema)
                )
        except TimeoutError:
            raise ValueError("the reviewer did not answer in time") from None
        self._budget.settle(reply.usage)
        took = round((time.monotonic() - began) * 1000)
        self._journal.post(ModelReplied(step=steps + 1, reply=reply, duration_ms=took))
        calls = (call.arguments for call in reply.message.tool_calls)
        try:
            return read_answer(self._shown, reply.message.content, *calls)
        except ValueError as error:
            raise ValueError(f"the reviewer answered twice in a form that cannot be used: {error}") from None


def limits_of(limits: Limits) -> Limits:
    """What a review may spend, given what an agent of its task may."""
    return replace(
        limits,
        max_iterations=min(MAX_ITERATIONS, limits.max_iterations),
        max_tool_calls=min(MAX_TOOL_CALLS, limits.max_tool_calls),
        timeout_seconds=min(MAX_SECONDS, limits.timeout_seconds),
    )


def _toolbox(clone: Clone, pipeline: Pipeline, schema: Mapping[str, object], *, runs: bool) -> Toolbox:
    """What only reads, of that which the task allows its agents; with `runs` its tests and a shell too."""
    kits: dict[str, Toolkit] = {kit.name: kit for kit in (FileTool(clone, pipeline), GitTool(clone, pipeline))}
    answer = final_answer_in(schema)
    if runs:
        kits |= {kit.name: kit for kit in (TestTool(clone, pipeline), ShellTool(clone, pipeline))}
        specs = {
            definition.spec.name: definition.spec for kit in kits.values() for definition in kit.definitions.values()
        }
        names = tuple(name for name in RUNNING if pipeline.policy.offers(specs[name]))
    else:
        names = offered(kits, pipeline, LOOKING)
    if not names:
        return Toolbox({}, pipeline, answer=answer)
    narrow = pipeline.under(replace(pipeline.policy, allowed=frozenset(names)))
    return Toolbox(kits, narrow, answer=answer)

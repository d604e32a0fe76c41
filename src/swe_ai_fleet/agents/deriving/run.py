"""One task split: the planner is asked once, and once more with everything that is wrong with its answer.

The prompt holds the task, and fenced off what the repository says of itself.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.deriving.answer import SplitShape, subtasks_of
from swe_ai_fleet.agents.prompting import Fence
from swe_ai_fleet.agents.recorded_run import RecordedRun, RunJournal, RunServices, concluded, read_run
from swe_ai_fleet.agents.repository_facts import RepositoryFacts
from swe_ai_fleet.agents.sub_agents.structured_output import opening, read, schema_of
from swe_ai_fleet.codec import to_json
from swe_ai_fleet.domain.assignment import DeriveAssignment
from swe_ai_fleet.domain.budget import Limits, Usage
from swe_ai_fleet.domain.candidate import Artifacts, Perspective
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, ModelError, Unavailable
from swe_ai_fleet.domain.event import MessageAdded, ModelReplied, RunFinished, RunStarted
from swe_ai_fleet.domain.message import Message, ModelRequest, UserMessage
from swe_ai_fleet.domain.run import RunState
from swe_ai_fleet.domain.subtask import MAX_SUBTASKS, Derivation, Subtask
from swe_ai_fleet.domain.task import Role, Task
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.ports import ChatModel, Clone, SecretMask

MAX_CONTEXT_CHARS = 24_000
MAX_FACTS_CHARS = 16_000
_ORDERS = {
    "sequential": "Each subtask is carried out after the one before it, on top of its result.",
    "parallel": "All subtasks are carried out at the same time: none may depend on another.",
    "auto": "Subtasks that do not depend on each other are carried out at the same time.",
}
STRATEGIES = tuple(_ORDERS)


def derive_messages(
    task: Task, *, roles: Collection[Role], strategy: str, facts: RepositoryFacts | None, mask: SecretMask
) -> tuple[Message, ...]:
    """The first messages of a planner's run. Without `facts` it has no repository to think of."""
    fence = Fence(mask, task.execution_id, "derive")
    constraints = task.constraints
    sections = [
        ("Task", mask(task.description)),
        ("Context", fence(task.context, MAX_CONTEXT_CHARS)),
        ("Requirements", mask("\n".join(f"- {requirement}" for requirement in constraints.requirements))),
        ("What it is judged by", mask(constraints.rubric)),
        ("Checks that must pass in the end", mask("\n".join(f"- `{check.command}`" for check in constraints.checks))),
        ("Paths that may be changed", mask(", ".join(constraints.allowed_paths))),
        ("The repository", fence(_facts(facts), MAX_FACTS_CHARS) if facts is not None else ""),
    ]
    return opening(
        "derive",
        sections,
        roles=", ".join(sorted(roles or Role)),
        order=_ORDERS[strategy],
        most=MAX_SUBTASKS,
        agents=task.num_agents,
        warning=fence.warning,
    )


def _facts(facts: RepositoryFacts) -> str:
    parts: Sequence[str] = (
        f"Languages: {', '.join(facts.languages)}" if facts.languages else "",
        f"Where the code is:\n{facts.map}" if facts.map else "",
        *(f"{one.path}:\n{one.text}" for one in facts.instructions),
    )
    return "\n\n".join(part for part in parts if part)


ATTEMPTS = 2
MAX_SECONDS = 600.0
MAP_TOKENS = 3_000
AGAIN = "These subtasks cannot be carried out: {problem}. Mend that: answer with the whole JSON object, nothing else."
_MAX_PROBLEM_CHARS = 2_000
_NAMESPACE = uuid.UUID("2b0f1f0a-5d1c-5c53-9a0b-6f0f3f1d7f2e")


@dataclass(frozen=True, kw_only=True)
class DeriveRun:
    """Carries out `DeriveAssignment`s, each recorded like every run."""

    services: RunServices

    async def carry_out(self, assignment: DeriveAssignment, clone: Clone | None) -> Derivation:
        """Split a task; with a clone, the planner is told what the repository says of itself.

        What an earlier process had come to is handed in again; otherwise the planner begins anew.

        Raises InvalidRequest (an unknown strategy; no sound split, and what is wrong with it), ModelError, Fenced,
        Unavailable (also where the time is up); a cancellation passes after it was recorded.
        """
        if assignment.strategy not in STRATEGIES:
            raise InvalidRequest(
                f"unknown strategy {assignment.strategy[:64]!r}",
                field="strategy",
                hint=f"one of {', '.join(STRATEGIES)}",
            )
        task, resumes = assignment.task, assignment.generation > 1
        async with self.services.recorded(assignment, resumes=resumes) as run:
            await run.journal.flush()
            spent = Usage()
            if resumes:
                earlier = await read_run(self.services.log, task.tenant, assignment.execution_id, assignment.agent_id)
                if (known := derivation_in(earlier)) is not None:
                    return known
                spent = earlier.usage
            return await self._derive(assignment, clone, run, spent)

    async def _derive(
        self, assignment: DeriveAssignment, clone: Clone | None, run: RecordedRun, spent: Usage
    ) -> Derivation:
        """Ask, and record the end."""
        equipment, task = self.services.equipment, assignment.task
        limits = _limits(task.constraints.limits)
        budget = Budget(limits, spent=spent)
        stop, error = StopReason.FINAL_ANSWER, None
        subtasks: tuple[Subtask, ...] = ()
        try:
            perspective = Perspective(model_profile=next(iter(task.profiles), ""))
            model = equipment.model(task, perspective, run.trail)
            async with asyncio.timeout(budget.seconds_left):
                name = (await model.probe()).model
                budget = Budget(limits, prices=equipment.price(name), spent=spent)
                messages = await self._open(assignment, clone, run, name)
                subtasks = await self._ask(assignment, model, messages, budget, run.journal)
        except TimeoutError:
            stop = StopReason.TIMEOUT
            error = Unavailable(f"the planner did not answer within {limits.timeout_seconds:g} seconds")
        except ModelError as fault:
            stop, error = StopReason.MODEL_ERROR, fault
        except InvalidRequest as fault:
            stop, error = StopReason.PLAN_FAILED, fault
        found = Derivation(derivation_id=_id(assignment), subtasks=subtasks, usage=budget.total())
        await run.journal.append(_finished(found, run.trail.head, stop, error))
        if error is not None:
            raise error
        return found

    async def _open(
        self, assignment: DeriveAssignment, clone: Clone | None, run: RecordedRun, model: str
    ) -> tuple[Message, ...]:
        equipment, task = self.services.equipment, assignment.task
        facts = None
        if clone is not None:
            key = (task.tenant, assignment.execution_id, assignment.agent_id)
            facts = await equipment.facts.of(key, clone, focus=task.description, map_tokens=MAP_TOKENS)
        messages = derive_messages(
            task, roles=assignment.roles, strategy=assignment.strategy, facts=facts, mask=equipment.mask
        )
        run.journal.post(RunStarted(role=task.role, model=model, messages=messages, tools=()))
        return messages

    async def _ask(
        self,
        assignment: DeriveAssignment,
        model: ChatModel,
        opening: Sequence[Message],
        budget: Budget,
        journal: RunJournal,
    ) -> tuple[Subtask, ...]:
        """What the planner answers. Raises InvalidRequest naming what is wrong with it, ModelError."""
        messages, problem = list(opening), ""
        for step in range(1, ATTEMPTS + 1):
            began = time.monotonic()
            reply = await model.reply(ModelRequest(messages, schema=schema_of(SplitShape)))
            budget.settle(reply.usage)
            took = round((time.monotonic() - began) * 1000)
            journal.post(ModelReplied(step=step, reply=reply, duration_ms=took))
            try:
                answer = read(SplitShape, reply.message.content, *(call.arguments for call in reply.message.tool_calls))
                return subtasks_of(
                    answer,
                    role=assignment.task.role,
                    roles=assignment.roles,
                    strategy=assignment.strategy,
                    mask=self.services.equipment.mask,
                )
            except ValueError as error:
                problem = str(error)[:_MAX_PROBLEM_CHARS]
            if budget.spent(iterations=step) is not None or step == ATTEMPTS:
                break
            again = UserMessage(content=AGAIN.format(problem=problem))
            journal.post(MessageAdded(step=step, message=again))
            messages += [replace(reply.message, tool_calls=()), again]
        raise InvalidRequest(
            f"the planner found no split that can be carried out: {problem}",
            field="task_description",
            hint="describe the parts, or hand them in one by one",
        )


def derivation_in(run: RunState) -> Derivation | None:
    """What a planner's run came to; None where it came to nothing (yet)."""
    succeeded = run.finished is not None and run.finished.stop_reason is StopReason.FINAL_ANSWER
    return concluded(run, Derivation) if succeeded else None


def _finished(found: Derivation, audit_head: str, stop: StopReason, error: FleetError | None) -> RunFinished:
    return RunFinished(
        stop_reason=stop,
        artifacts=Artifacts(),
        usage=found.usage,
        audit_head=audit_head,
        answer=to_json(found).decode() if error is None else "",
        error=str(error) if error is not None else "",
    )


def _id(assignment: DeriveAssignment) -> str:
    return str(uuid.uuid5(_NAMESPACE, f"{assignment.execution_id}/{assignment.agent_id}"))


def _limits(limits: Limits) -> Limits:
    return replace(
        limits,
        max_iterations=max(ATTEMPTS, limits.max_iterations),
        timeout_seconds=min(MAX_SECONDS, limits.timeout_seconds),
    )

"""One task split into subtasks by a planner, which is asked a second time with all problems of its answer.

The prompt has the task and, fenced off, facts about the repository. The answer is read leniently and turned into
subtasks: bounded, masked, with generated ids, and checked to be a graph that can be executed.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import BeforeValidator, Field

from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.opening import RepositoryFacts
from swe_ai_fleet.agents.prompting import Fence
from swe_ai_fleet.agents.run_deps import RunContext, RunEnding, RunRecorder, short_limits
from swe_ai_fleet.agents.spec import RecordedQuestions
from swe_ai_fleet.agents.structured_output import (
    AnswerForm,
    NonEmptyText,
    Shape,
    Text,
    Texts,
    as_text,
    keyed_by,
    opening,
    read,
    schema_of,
)
from swe_ai_fleet.domain.assignment import DeriveAssignment
from swe_ai_fleet.domain.candidate import Perspective
from swe_ai_fleet.domain.errors import InvalidRequest, ModelError, Unavailable
from swe_ai_fleet.domain.message import Message
from swe_ai_fleet.domain.subtask import JOINT, MAX_SUBTASK_CHARS, MAX_SUBTASKS, Derivation, Subtask, check_graph
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.domain.text import shortened, well_formed
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.ports import Clone, SecretMask

MAX_CONTEXT_CHARS = 24_000
MAX_FACTS_CHARS = 16_000
_ORDERS = {
    "sequential": "Each subtask is carried out after the one before it, on top of its result.",
    "parallel": "All subtasks are carried out at the same time: none may depend on another.",
    "auto": "Subtasks that do not depend on each other are carried out at the same time.",
}
STRATEGIES = tuple(_ORDERS)
MAP_TOKENS = 3_000
AGAIN = "These subtasks cannot be carried out: {problem}. Fix that: answer with the whole JSON object, nothing else."
_MAX_PROBLEM_CHARS = 2_000
_NAMESPACE = uuid.UUID("2b0f1f0a-5d1c-5c53-9a0b-6f0f3f1d7f2e")
_MAX_NAME_CHARS = 200
_HIGHEST = 9
MAX_ID_CHARS = 32
MAX_ALL_CHARS = 64_000
"""The most characters of all descriptions together."""
MAX_NAMES = 50
MAX_PATHS = 20
MAX_PATH_CHARS = 300
_NOT_IN_AN_ID = re.compile(r"[^a-z0-9]+")


async def _opening(assignment: DeriveAssignment, clone: Clone | None, run: RunContext) -> tuple[Message, ...]:
    task, mask, facts = assignment.task, run.deps.mask, None
    if clone is not None:
        key = (task.tenant, assignment.execution_id, assignment.agent_id)
        facts = await run.deps.facts.of(key, clone, focus=task.description, map_tokens=MAP_TOKENS, narrow=False)
        facts = facts.selected(task.context_options)
    fence, constraints = Fence(mask, task.execution_id, "derive"), task.constraints
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
        roles=", ".join(sorted(assignment.roles or Role)),
        order=_ORDERS[assignment.strategy],
        most=MAX_SUBTASKS,
        agents=task.num_agents,
        warning=fence.warning,
    )


def _facts(facts: RepositoryFacts) -> str:
    parts: Sequence[str] = (
        f"Languages: {', '.join(facts.languages)}" if facts.languages else "",
        f"Where the code is:\n{facts.map}" if facts.map else "",
        *(f"{instruction.path}:\n{instruction.text}" for instruction in facts.instructions),
    )
    return "\n\n".join(part for part in parts if part)


@dataclass(frozen=True, kw_only=True)
class DeriveRun:
    recorder: RunRecorder

    async def run(self, assignment: DeriveAssignment, clone: Clone | None) -> Derivation:
        """Split a task; with a clone, the planner also gets facts about the repository.

        Raises InvalidRequest (an unknown strategy; no valid split, with its problems), ModelError, Unavailable (also
        after a time-out), and as `RunRecorder.run` does.
        """
        if assignment.strategy not in STRATEGIES:
            raise InvalidRequest(
                f"unknown strategy {assignment.strategy[:64]!r}",
                field="strategy",
                hint=f"one of {', '.join(STRATEGIES)}",
            )
        return await self.recorder.run(assignment, clone, lambda run: _derive(assignment, clone, run))


async def _derive(assignment: DeriveAssignment, clone: Clone | None, run: RunContext) -> RunEnding[Derivation]:
    task = assignment.task
    budget = Budget(short_limits(task.constraints.limits), spent=run.earlier.usage)
    stop, fault, subtasks = StopReason.FINAL_ANSWER, None, tuple[Subtask, ...]()

    def split(texts: Sequence[str]) -> tuple[Subtask, ...]:
        try:
            return subtasks_of(read(SplitShape, *texts), assignment, mask=run.deps.mask)
        except ValueError as error:
            raise ValueError(str(error)[:_MAX_PROBLEM_CHARS]) from None

    try:
        async with budget.time_limit():
            perspective = Perspective(model_profile=next(iter(task.profiles), ""))
            questions, _ = await RecordedQuestions.opened(run, task, perspective, budget)
            messages = questions.begin(questions.opening or await _opening(assignment, clone, run))
            form = AnswerForm(schema=schema_of(SplitShape), read=split, again=AGAIN)
            subtasks = await questions.answer(messages, form)
    except TimeoutError:
        stop = StopReason.TIMEOUT
        fault = Unavailable(f"the planner did not answer within {budget.limits.timeout_seconds:g} seconds")
    except ModelError as error:
        stop, fault = StopReason.MODEL_ERROR, error
    except InvalidRequest as error:
        stop, fault = StopReason.PLAN_FAILED, error
    except ValueError as error:
        stop = StopReason.PLAN_FAILED
        fault = InvalidRequest(
            f"the planner found no split that can be carried out: {error}",
            field="task_description",
            hint="describe the parts, or hand them in one by one",
        )
    name = str(uuid.uuid5(_NAMESPACE, f"{assignment.execution_id}/{assignment.agent_id}"))
    derivation = Derivation(derivation_id=name, subtasks=subtasks, usage=budget.total(), joint=JOINT)
    return RunEnding(value=derivation, stop_reason=stop, usage=derivation.usage, fault=fault)


def _as_priority(value: object) -> int:
    """A priority from 0 to 9; 0 for anything that is no number."""
    try:
        number = int(str(value)[:10])
    except ValueError:
        return 0
    return min(_HIGHEST, max(0, number))


class SubtaskShape(Shape):
    id: Annotated[
        str, BeforeValidator(lambda value: " ".join(as_text(value)[:_MAX_NAME_CHARS].split())), Field(min_length=1)
    ] = Field(description="A short name of its own, such as `parser` or `parser-tests`.")
    role: Text = Field(default="", description="The role that does it.")
    description: NonEmptyText = Field(
        description="What is to be done, whole: whoever does it reads this, the task, and the code as it is by then."
    )
    depends_on: Texts = Field(default=[], description="The ids of the subtasks whose result it needs.")
    priority: Annotated[int, BeforeValidator(_as_priority)] = Field(
        default=0, description="0 to 9; of those that are ready, the higher goes first."
    )
    paths: Texts = Field(default=[], description="Globs of all files that it may change; none: any.")


class SplitShape(Shape):
    subtasks: Annotated[list[SubtaskShape], keyed_by("id"), Field(min_length=1)] = Field(
        description="The subtasks, what comes first before what needs it."
    )
    reasoning: Text = Field(default="", description="Why it is split this way, in a sentence or two.")


def subtasks_of(answer: SplitShape, assignment: DeriveAssignment, *, mask: SecretMask) -> tuple[Subtask, ...]:
    """The subtasks in topological order. Raises ValueError with all their problems.

    With the strategy `sequential`, each depends on the one before it; with `parallel`, none may have dependencies.
    """
    role, roles, strategy = assignment.task.role, assignment.roles, assignment.strategy
    ids = _ids(answer.subtasks)
    limit = min(MAX_SUBTASK_CHARS, MAX_ALL_CHARS // len(answer.subtasks))
    problems: list[str] = []
    subtasks: list[Subtask] = []
    for name, shape in zip(ids, answer.subtasks, strict=True):
        try:
            subtask_role = Role.parse(shape.role or (role if not roles or role in roles else min(roles)))
        except InvalidRequest as error:
            problems.append(f"{name!r}: {error}")
            subtask_role = role
        subtasks.append(
            Subtask(
                subtask_id=name,
                description=shortened(mask(well_formed(shape.description)).replace("\0", "").strip(), limit),
                role=subtask_role,
                dependencies=_dependencies(shape, ids, answer.subtasks),
                priority=shape.priority,
                allowed_paths=_paths(shape),
            )
        )
    if strategy == "parallel" and any(subtask.dependencies for subtask in subtasks):
        problems.append("none may depend on another: all are carried out at the same time")
    try:
        ordered = check_graph(subtasks, roles)
    except InvalidRequest as error:
        problems.append(error.message)
        ordered = ()
    if problems:
        raise ValueError("; ".join(problems))
    return _chained(ordered) if strategy == "sequential" else ordered


def _ids(subtasks: Sequence[SubtaskShape]) -> list[str]:
    """Safe ids, different for different names. Equal names get equal ids, which `check_graph` refuses."""
    by_name: dict[str, str] = {}
    for number, shape in enumerate(subtasks, start=1):
        name = _name(shape.id)
        if name in by_name:
            continue
        slug = _NOT_IN_AN_ID.sub("-", name).strip("-")[:MAX_ID_CHARS].strip("-") or f"subtask-{number}"
        used, again = set(by_name.values()), 2
        unique = slug
        while unique in used:
            unique, again = f"{slug}-{again}", again + 1
        by_name[name] = unique
    return [by_name[_name(subtask.id)] for subtask in subtasks]


def _dependencies(shape: SubtaskShape, ids: Sequence[str], subtasks: Sequence[SubtaskShape]) -> tuple[str, ...]:
    """The ids of the named subtasks. An unknown name stays as it is; `check_graph` refuses it."""
    names_by_id = {_name(shape.id): name for name, shape in zip(ids, subtasks, strict=True)}
    names_by_id |= {name: name for name in ids if name not in names_by_id}
    named: list[str] = []
    for name in shape.depends_on:
        named += [name] if _name(name) in names_by_id else name.split(",")[:MAX_NAMES]
    names = (name.strip() for name in named)
    return tuple(dict.fromkeys(names_by_id.get(_name(name), name[:MAX_ID_CHARS]) for name in names if name))


def _name(text: str) -> str:
    return " ".join(text.strip("`'\" ").lower().split())


def _paths(shape: SubtaskShape) -> tuple[str, ...]:
    paths: list[str] = []
    for path in shape.paths:
        pattern = path.strip().strip("`'\"").removeprefix("/workspace/").removeprefix("./")
        if (
            not pattern
            or len(pattern) > MAX_PATH_CHARS
            or pattern.startswith("/")
            or ".." in pattern.split("/")
            or not pattern.isprintable()
        ):
            continue
        paths.append(f"{pattern}**" if pattern.endswith("/") else pattern)
    return tuple(dict.fromkeys(paths))[:MAX_PATHS]


def _chained(ordered: Sequence[Subtask]) -> tuple[Subtask, ...]:
    previous_ids = ("", *(subtask.subtask_id for subtask in ordered))
    return tuple(
        subtask
        if previous in ("", *subtask.dependencies)
        else replace(subtask, dependencies=(*subtask.dependencies, previous))
        for previous, subtask in zip(previous_ids, ordered, strict=False)
    )

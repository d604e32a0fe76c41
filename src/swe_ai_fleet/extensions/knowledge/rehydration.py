"""The state that a lost session needs to resume."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace

from swe_ai_fleet.domain.context import Decision, GatheredContext, Phase, StoryTask, TaskState
from swe_ai_fleet.domain.errors import InvalidRequest, NotFound
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.domain.text import counted
from swe_ai_fleet.extensions.knowledge.drafts import (
    MAX_EXECUTIONS,
    MAX_SIBLINGS,
    OPEN,
    ContextDraft,
    Section,
    drafts,
    in_force,
    titled,
)
from swe_ai_fleet.extensions.knowledge.gathering import Viewpoint, check_token_budget, compose
from swe_ai_fleet.extensions.knowledge.graph import ContextGraph, LoggedWork
from swe_ai_fleet.extensions.knowledge.story import StoryState, in_order
from swe_ai_fleet.ports import SecretMask

DEFAULT_TOKENS = 8_000
MAX_STORIES = 50
"""The most stories of a case, those created last."""
_STEPS = 10
_AFTER = {
    Phase.PLAN: "agree on the acceptance criteria and the tasks, then go to design",
    Phase.DESIGN: "record the decisions, then go to build",
    Phase.BUILD: "finish the open tasks, then go to test",
    Phase.TEST: "check the work against the acceptance criteria, then go to review",
    Phase.REVIEW: "resolve the review findings, then close the story",
    Phase.DONE: "all phases are done",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StorySession:
    """The state of a story. `open_tasks` are in the order in which they can be done; `ready` can start now.

    `decisions` are those in force for the role, `work` the records of the last executions, the newest first;
    `next_steps` describe what to do next.
    """

    state: StoryState
    phase: Phase
    open_tasks: tuple[StoryTask, ...] = ()
    ready: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()
    work: tuple[LoggedWork, ...] = ()
    next_steps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RehydratedSession:
    """The state of a case's stories (or of the named one), and the same as text for a prompt."""

    case_id: str
    stories: tuple[StorySession, ...]
    context: GatheredContext


async def rehydrate(
    graph: ContextGraph,
    *,
    story_id: str = "",
    case_id: str = "",
    role: Role | None = None,
    token_budget: int = 0,
    mask: SecretMask,
) -> RehydratedSession:
    """The state to resume a lost session with, of one story or of all stories of a case.

    Args:
        graph: The project knowledge.
        story_id: The story; empty: every story of the case.
        case_id: The case; empty: the story's own.
        role: The role of the session; None: any.
        token_budget: The budget of the text; 0: 8,000.
        mask: Hides secrets in the text.

    Raises:
        InvalidRequest: Neither is given, or the story is not of the case.
        NotFound: There is no such story, no such case.
    """
    check_token_budget(token_budget)
    states = _states(graph, story_id, case_id)
    part = graph.excerpt(states, neighbours=MAX_SIBLINGS)
    return await asyncio.to_thread(_rehydrated, part, states, case_id, role, token_budget or DEFAULT_TOKENS, mask)


def _rehydrated(
    graph: ContextGraph,
    states: tuple[StoryState, ...],
    case_id: str,
    role: Role | None,
    token_budget: int,
    mask: SecretMask,
) -> RehydratedSession:
    sessions = tuple(_session(graph, state, role) for state in states)
    parts: dict[ContextDraft, None] = {}
    for session in sessions:
        parts[_steps_draft(session)] = None
        parts |= dict.fromkeys(drafts(graph, session.state, role=role))
    phase = sessions[0].phase if len(sessions) == 1 else None
    context = compose(tuple(parts), Viewpoint(role=role, phase=phase), token_budget=token_budget, mask=mask)
    story = states[0].story
    return RehydratedSession(case_id=case_id or (story.case_id if story else ""), stories=sessions, context=context)


def _states(graph: ContextGraph, story_id: str, case_id: str) -> tuple[StoryState, ...]:
    if story_id:
        state = graph.story(story_id)
        if case_id and (state.story is None or state.story.case_id != case_id):
            raise InvalidRequest(
                f"story {story_id} does not belong to case {case_id[:64]!r}",
                field="case_id",
                hint="leave one of them out",
            )
        return (state,)
    if not case_id:
        raise InvalidRequest("no session given", field="story_id", hint="set story_id or case_id")
    states = graph.case(case_id, limit=MAX_STORIES)
    if not states:
        raise NotFound(f"there is no case {case_id[:64]!r}", field="case_id", hint="set case_id in CreateStory")
    return states


def _session(graph: ContextGraph, state: StoryState, role: Role | None) -> StorySession:
    open_tasks = tuple(task for task in in_order(state.tasks.values()) if task.state in OPEN)
    waiting = {task.task_id for task in open_tasks}
    ready = tuple(task.task_id for task in open_tasks if waiting.isdisjoint(task.depends_on))
    session = StorySession(
        state=state,
        phase=state.story.phase if state.story else Phase.PLAN,
        open_tasks=open_tasks,
        ready=ready,
        decisions=in_force(graph, state, role),
        work=graph.work(f"story:{state.story_id}", limit=MAX_EXECUTIONS),
    )
    return replace(session, next_steps=tuple(_next_steps(session)))


def _next_steps(session: StorySession) -> Iterator[str]:
    """The next steps, the most urgent first: tasks in progress, failures, tasks that can start, the phase."""
    for task in session.open_tasks[:_STEPS]:
        if task.state is TaskState.IN_PROGRESS:
            yield f"continue task {task.task_id}: {titled(task.title)}"
    last = session.work[0].record if session.work else None
    if last is not None and last.status != "completed":
        yield f"execution {last.execution_id} of task {last.task_id} ended as {last.status}: find out why, run it again"
    if last is not None and last.tests is not None and last.tests.failing:
        yield f"fix the tests that failed last: {titled(', '.join(last.tests.failing))}"
    begun = {task.task_id for task in session.open_tasks if task.state is TaskState.IN_PROGRESS}
    for task in session.open_tasks:
        if task.task_id in session.ready[:_STEPS] and task.task_id not in begun:
            yield f"start task {task.task_id}: {titled(task.title)}"
    blocked = len(session.open_tasks) - len(session.ready)
    if blocked:
        yield f"waiting for other tasks: {counted(blocked, 'task')}"
    yield f"the story is in phase {session.phase}: {_AFTER[session.phase]}"


def _steps_draft(session: StorySession) -> ContextDraft:
    return ContextDraft(
        section=Section.STORY,
        title=f"next steps of {session.state.story_id}",
        text="\n".join(f"- {step}" for step in session.next_steps),
        place=max(session.state.places.values(), default=0),
    )

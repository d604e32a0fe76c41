"""The calls about stories, tasks, decisions, phases and records of work, and their messages on the wire.

Lists of stories come in pages, the last changed story first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from fleet.context.v1 import context_pb2 as pb
from services.auth import caller_of, tenant
from services.errors import Context
from services.pages import key_of, page_token
from swe_ai_fleet.contract import from_enum, from_message, to_enum, to_message
from swe_ai_fleet.domain.context import (
    NO_STORY,
    ContextRequest,
    Decision,
    Phase,
    Relation,
    RelationKind,
    Story,
    StoryTask,
    StoryUpdated,
    WorkRecord,
)
from swe_ai_fleet.domain.errors import InvalidRequest, NotFound, PreconditionFailed
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.domain.text import check_identifier, milliseconds, now
from swe_ai_fleet.extensions.knowledge.drafts import OPEN
from swe_ai_fleet.extensions.knowledge.graph import ContextGraph
from swe_ai_fleet.extensions.knowledge.memory_calls import (
    MAX_REPLY_BYTES,
    ContextCalls,
    fields_within,
    fitting,
    foreign,
)
from swe_ai_fleet.extensions.knowledge.rehydration import RehydratedSession, StorySession, rehydrate
from swe_ai_fleet.extensions.knowledge.relations import Neighbourhood, ScopeVerdict, neighbourhood, validate_scope
from swe_ai_fleet.extensions.knowledge.store import ContextStore
from swe_ai_fleet.extensions.knowledge.story import StoryState
from swe_ai_fleet.ports import ContextSource, EventLog, SecretMask

STORIES_PAGE_SIZE = 50
T = TypeVar("T")
DEFAULT_PAGE_SIZE = 200
MAX_PART_BYTES = 128 * 1024
"""The limit of each list of a story, so that a story of nearly 1 MiB and the largest prompt text fit a reply."""


def decision(message: pb.Decision, *, caller: str) -> Decision:
    return from_message(Decision, message, decided_by=message.decided_by or caller)


def decision_message(decision: Decision) -> pb.Decision:
    return to_message(pb.Decision, decision, story_id="" if decision.story_id == NO_STORY else decision.story_id)


def update(request: pb.UpdateContextRequest) -> StoryUpdated:
    # An empty role removes the task's role.
    role = (from_enum(Role, pb.Role, request.role) or "") if request.HasField("role") else None
    return from_message(StoryUpdated, request, role=role)


def work_record(message: pb.WorkRecord) -> WorkRecord:
    return from_message(WorkRecord, message, **({} if message.ended_at_ms else {"ended_at": now()}))


def work_message(record: WorkRecord) -> pb.WorkRecord:
    return to_message(pb.WorkRecord, record, story_id="" if record.story_id == NO_STORY else record.story_id)


def stories_page(graph: ContextGraph, request: pb.ListStoriesRequest) -> pb.ListStoriesResponse:
    """The requested page, the last changed story first. Raises InvalidRequest."""
    size = request.page_size or STORIES_PAGE_SIZE
    phases = {from_enum(Phase, pb.Phase, phase) for phase in request.phases} - {None}
    query = ("stories", request.case_id, sorted(request.phases))
    previous = key_of(request.page_token, query, str, str)
    states = graph.case(request.case_id) if request.case_id else tuple(graph.stories.values())
    entries = [
        (_place(state), state, state.story)
        for state in states
        if state.story is not None and (not phases or state.story.phase in phases)
        if not previous or _place(state) < previous
    ]
    entries.sort(key=lambda entry: entry[0], reverse=True)
    page = fitting((_card(state, story) for _, state, story in entries[:size]), MAX_REPLY_BYTES)
    more = len(page) < len(entries)
    return pb.ListStoriesResponse(
        stories=page, next_page_token=page_token(query, entries[len(page) - 1][0]) if more else ""
    )


def _place(state: StoryState) -> tuple[str, str]:
    return state.changed_at, state.story_id


def _card(state: StoryState, story: Story) -> pb.StoryCard:
    return to_message(
        pb.StoryCard,
        story,
        version=state.version,
        task_count=len(state.tasks),
        open_task_count=sum(task.state in OPEN for task in state.tasks.values()),
        decision_count=len(state.decisions),
        changed_at_ms=milliseconds(state.changed_at),
    )


@dataclass(frozen=True, kw_only=True)
class GraphCalls(ContextCalls):
    """The RPCs about stories and work.

    Attributes:
        store: The project knowledge.
        source: Makes contexts from it.
        log: The events of the fleet's own executions.
        mask: Hides secrets in the state of a resumed session.
    """

    store: ContextStore
    source: ContextSource
    log: EventLog
    mask: SecretMask

    async def GetContext(self, request: pb.GetContextRequest, context: Context) -> pb.GetContextResponse:
        question = from_message(ContextRequest, request, tenant=tenant())
        # Read before the context: a client that writes on this version must have all changes up to it.
        version = self._version(question)
        gathered = await self.source.gather(question)
        if not version and (version := self._version(question)):
            # The story arrived in the meantime.
            gathered = await self.source.gather(question)
        return to_message(pb.GetContextResponse, gathered, version=version)

    async def UpdateContext(self, request: pb.UpdateContextRequest, context: Context) -> pb.UpdateContextResponse:
        await self.check(request)
        state = await self.store.update(
            tenant(), request.story_id, update(request), expected_version=_expected(request)
        )
        changed = state.tasks.get(request.task_id)
        decided = state.decisions.get(request.decision_id)
        return pb.UpdateContextResponse(
            version=state.version,
            story=_story(state),
            task=to_message(pb.Task, changed) if changed is not None else None,
            decision=decision_message(decided) if decided is not None else None,
        )

    async def RehydrateSession(
        self, request: pb.RehydrateSessionRequest, context: Context
    ) -> pb.RehydrateSessionResponse:
        session = await self._asked(
            lambda graph: rehydrate(
                graph,
                story_id=request.story_id,
                case_id=request.case_id,
                role=from_enum(Role, pb.Role, request.role),
                token_budget=request.token_budget,
                mask=self.mask,
            )
        )
        version = session.stories[0].state.version if request.story_id and session.stories else 0
        return await asyncio.to_thread(_rehydrated, session, version)

    async def ValidateScope(self, request: pb.ValidateScopeRequest, context: Context) -> pb.ValidateScopeResponse:
        role, phase = from_enum(Role, pb.Role, request.role), from_enum(Phase, pb.Phase, request.phase)
        if role is None:
            raise InvalidRequest("no role given", field="role", hint="the reader of the prompt")
        if phase is None:
            raise InvalidRequest("no phase given", field="phase", hint="the phase of the work")

        async def judged(graph: ContextGraph) -> ScopeVerdict:
            return validate_scope(graph, role, phase, tuple(request.scopes), story_id=request.story_id)

        verdict = await self._asked(judged)
        return pb.ValidateScopeResponse(allowed=verdict.allowed, missing=verdict.missing, extra=verdict.extra)

    async def CreateStory(self, request: pb.CreateStoryRequest, context: Context) -> pb.CreateStoryResponse:
        await self.check(request)
        with fields_within("story"):
            state = await self.store.create_story(tenant(), from_message(Story, request.story))
        return pb.CreateStoryResponse(version=state.version, story=_story(state))

    async def CreateTask(self, request: pb.CreateTaskRequest, context: Context) -> pb.CreateTaskResponse:
        await self.check(request)
        with fields_within("task", expected_version="expected_version"):
            state = await self.store.create_task(
                tenant(), from_message(StoryTask, request.task), expected_version=_expected(request)
            )
        return pb.CreateTaskResponse(version=state.version, task=to_message(pb.Task, state.tasks[request.task.task_id]))

    async def AddProjectDecision(
        self, request: pb.AddProjectDecisionRequest, context: Context
    ) -> pb.AddProjectDecisionResponse:
        await self.check(request)
        with fields_within("decision", expected_version="expected_version"):
            state = await self.store.add_decision(
                tenant(), decision(request.decision, caller=caller_of(context)), expected_version=_expected(request)
            )
        stored = state.decisions[request.decision.decision_id]
        return pb.AddProjectDecisionResponse(version=state.version, decision=decision_message(stored))

    async def TransitionPhase(self, request: pb.TransitionPhaseRequest, context: Context) -> pb.TransitionPhaseResponse:
        await self.check(request)
        phase = from_enum(Phase, pb.Phase, request.phase)
        if phase is None:
            raise InvalidRequest("no phase given", field="phase", hint=f"one of {', '.join(pb.Phase.keys()[1:])}")
        before = self.store.graph(tenant()).stories.get(request.story_id)
        state = await self.store.change_phase(
            tenant(),
            request.story_id,
            phase,
            reason=request.reason,
            by=caller_of(context),
            expected_version=_expected(request),
        )
        return pb.TransitionPhaseResponse(
            version=state.version,
            story=_story(state),
            previous=_previous(state, before.version if before else 0),
        )

    async def ListStories(self, request: pb.ListStoriesRequest, context: Context) -> pb.ListStoriesResponse:
        return stories_page(self.store.graph(tenant()), request)

    async def GetGraphRelationships(
        self, request: pb.GetGraphRelationshipsRequest, context: Context
    ) -> pb.GetGraphRelationshipsResponse:
        size = request.page_size or DEFAULT_PAGE_SIZE
        kinds = [kind for name in request.kinds if (kind := from_enum(RelationKind, pb.RelationKind, name)) is not None]

        async def around(graph: ContextGraph) -> Neighbourhood:
            return neighbourhood(graph, request.node, depth=request.depth or 1, kinds=kinds)

        near = await self._asked(around)
        query = (request.node, sorted(request.kinds), request.depth)
        (start,) = key_of(request.page_token, query, int) or (0,)
        start = max(0, start)
        page = fitting(
            (to_message(pb.Relation, edge) for edge in near.relations[start : start + size]), MAX_REPLY_BYTES // 2
        )
        end = start + len(page)
        kind, _, name = request.node.partition(":")
        return pb.GetGraphRelationshipsResponse(
            relations=page,
            nodes=_nodes(near.nodes, near.relations[start:end], first=not start),
            truncated=near.truncated,
            next_page_token=page_token(query, (end,)) if end < len(near.relations) else "",
            version=self.store.graph(tenant()).version(name) if kind == "story" else 0,
        )

    async def RecordOperations(
        self, request: pb.RecordOperationsRequest, context: Context
    ) -> pb.RecordOperationsResponse:
        await self.check(request)
        with fields_within("record"):
            record = work_record(request.record)
            await self._check_foreign(foreign(record.execution_id, field="execution_id"))
            recorded = await self.store.record_work(tenant(), record)
        return pb.RecordOperationsResponse(
            version=self.store.graph(tenant()).version(record.story_id), already_existed=not recorded
        )

    async def _check_foreign(self, execution_id: str) -> None:
        """Refuse executions of the fleet, which records them itself: a record by others would replace its own."""
        check_identifier(execution_id, field="execution_id")
        async with aclosing(self.log.read(tenant(), execution_id)) as events:
            async for _ in events:
                raise PreconditionFailed(
                    f"{execution_id} is an execution of this fleet, which records it itself when it ends",
                    field="execution_id",
                    hint="leave it to the fleet",
                )

    async def _asked(self, ask: Callable[[ContextGraph], Awaitable[T]]) -> T:
        """The answer of the graph. Before NotFound is raised, the graph catches up with the log."""
        try:
            return await ask(self.store.graph(tenant()))
        except NotFound:
            # Another replica may have created it a moment ago.
            await self.store.catch_up()
            return await ask(self.store.graph(tenant()))

    def _version(self, request: ContextRequest) -> int:
        """The version of the story that a context is about; 0 if it is about none."""
        graph = self.store.graph(request.tenant)
        story_id = request.story_id
        if not story_id and request.task_id:
            try:
                story_id = graph.task(request.task_id).story_id
            except (NotFound, InvalidRequest):
                return 0
        return graph.version(story_id)


def _expected(
    request: pb.UpdateContextRequest | pb.CreateTaskRequest | pb.AddProjectDecisionRequest | pb.TransitionPhaseRequest,
) -> int | None:
    return request.expected_version if request.HasField("expected_version") else None


def _story(state: StoryState) -> pb.Story | None:
    return to_message(pb.Story, state.story) if state.story is not None else None


def _previous(state: StoryState, version: int) -> pb.Phase:
    """The phase of a story before its last change, if that was later than a version; else its phase."""
    moved = state.phases[-1].version > version and len(state.phases) > 1
    return to_enum(pb.Phase, state.phases[-2 if moved else -1].phase)


def _rehydrated(session: RehydratedSession, version: int) -> pb.RehydrateSessionResponse:
    reply = pb.RehydrateSessionResponse(
        case_id=session.case_id, context=to_message(pb.GetContextResponse, session.context, version=version)
    )
    reply.stories.extend(fitting(map(_session, session.stories), MAX_REPLY_BYTES - reply.ByteSize()))
    return reply


def _session(session: StorySession) -> pb.StorySession:
    return pb.StorySession(
        story=_story(session.state),
        version=session.state.version,
        open_tasks=fitting((to_message(pb.Task, task) for task in session.open_tasks), MAX_PART_BYTES),
        ready=session.ready,
        decisions=fitting(map(decision_message, session.decisions), MAX_PART_BYTES),
        work=fitting((work_message(work.record) for work in session.work), MAX_PART_BYTES),
        phases=fitting((to_message(pb.PhaseStep, at) for at in reversed(session.state.phases)), MAX_PART_BYTES)[::-1],
        next_steps=session.next_steps,
    )


def _nodes(nodes: Sequence[str], relations: Sequence[Relation], *, first: bool) -> list[str]:
    """The nodes that a page of relations names, the nearest first; on the first page the start node too."""
    named = {end for relation in relations for end in (relation.source, relation.target)}
    named.update(nodes[:1] if first else ())
    return [node for node in nodes if node in named]

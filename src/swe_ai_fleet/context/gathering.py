"""The project's context for a prompt: blocks of the graph and memories, the most relevant first."""

from __future__ import annotations

import asyncio

from swe_ai_fleet.agents.sub_agents.recall import names
from swe_ai_fleet.context.blocks import Viewpoint, check_token_budget, compose
from swe_ai_fleet.context.drafts import MAX_SIBLINGS, Draft, drafts, of_memory
from swe_ai_fleet.context.graph import ContextGraph
from swe_ai_fleet.context.store import ContextStore
from swe_ai_fleet.context.story import StoryState
from swe_ai_fleet.domain.context import ContextRequest, GatheredContext, Phase
from swe_ai_fleet.domain.errors import InvalidRequest, NotFound
from swe_ai_fleet.domain.memory import MemoryScope, Recollection, check_entities, check_namespaces
from swe_ai_fleet.ports import Memories, SecretMask

DEFAULT_TOKENS = 4_000
RECALLED = 5
NAMED = 3
"""Of each entity."""
_AT_ONCE = 4
_MAX_STORIES = 20
"""Of a case."""
_QUERY_CHARS = 4_000


class ContextGatherer:
    """A `ContextSource`.

    Args:
        store: The project knowledge.
        memories: Long-term memories; None: nothing is recalled.
        mask: Hides secrets in the text.
        token_budget: The budget of a request that names none.
    """

    def __init__(
        self, store: ContextStore, memories: Memories | None, *, mask: SecretMask, token_budget: int = DEFAULT_TOKENS
    ) -> None:
        self._store = store
        self._memories = memories
        self._mask = mask
        self._token_budget = token_budget

    async def gather(self, request: ContextRequest) -> GatheredContext:
        """What fits the budget, the most relevant first. Raises InvalidRequest, NotFound, Unavailable.

        An unknown story, case or task is no fault where memories are requested too: `omitted` names it.
        """
        _check(request)
        named, unknown = await self._memories_by_name(request)
        recalled = _each_once(named, await self._recalled(request))
        missing = tuple(f"no memories about {entity}" for entity in unknown)
        try:
            states = await self._chosen(request)
        except NotFound as fault:
            if not request.namespaces:
                raise
            states, missing = (), (fault.message, *missing)
        part = self._store.graph(request.tenant).excerpt(states, neighbours=MAX_SIBLINGS)
        viewpoint = Viewpoint(
            role=request.role,
            phase=request.phase or _phase(states),
            query=(request.query.strip() or _own_words(states, request))[:_QUERY_CHARS],
        )

        def composed() -> GatheredContext:
            candidates = [
                draft for state in states for draft in drafts(part, state, task_id=request.task_id, role=request.role)
            ]
            wanted = [draft for draft in dict.fromkeys(candidates) if _is_wanted(draft, request)]
            return compose(
                (*wanted, *(of_memory(memory, wanted=memory in named) for memory in recalled)),
                viewpoint,
                token_budget=request.token_budget or self._token_budget,
                mask=self._mask,
                recalled=recalled,
                omitted=missing,
            )

        return await asyncio.to_thread(composed)

    async def _chosen(self, request: ContextRequest) -> tuple[StoryState, ...]:
        try:
            return chosen(self._store.graph(request.tenant), request)
        except NotFound:
            # Another replica may have created it a moment ago.
            await self._store.catch_up()
            return chosen(self._store.graph(request.tenant), request)

    async def _recalled(self, request: ContextRequest) -> tuple[Recollection, ...]:
        if self._memories is None or not request.namespaces or not request.query.strip():
            return ()
        scope = MemoryScope(tenant=request.tenant, namespaces=request.namespaces)
        return await self._memories.recall(request.query[:_QUERY_CHARS], scope, limit=RECALLED)

    async def _memories_by_name(self, request: ContextRequest) -> tuple[tuple[Recollection, ...], tuple[str, ...]]:
        """The memories that name the entities, and the entities that none names."""
        named: list[Recollection] = []
        unknown: list[str] = []
        if self._memories is None:
            return (), request.entities
        scope = MemoryScope(tenant=request.tenant, namespaces=request.namespaces)
        for start in range(0, len(request.entities), _AT_ONCE):
            some = request.entities[start : start + _AT_ONCE]
            searches = (self._memories.recall(entity, scope, limit=RECALLED) for entity in some)
            for entity, recalled in zip(some, await asyncio.gather(*searches), strict=True):
                naming = [memory for memory in recalled if names(entity, memory.memory.text)][:NAMED]
                named += naming
                unknown += [] if naming else [entity]
        return tuple(named), tuple(unknown)


def chosen(graph: ContextGraph, request: ContextRequest) -> tuple[StoryState, ...]:
    """The stories that a request is about; the project as a whole where it names none of them.

    Raises NotFound (nothing is known of what it names), InvalidRequest (a task of several stories).
    """
    if request.story_id:
        return (_story(graph, request.story_id),)
    if request.case_id:
        states = graph.case(request.case_id, limit=_MAX_STORIES)
        if not states:
            raise NotFound(
                f"there is no case {request.case_id[:64]!r}", field="case_id", hint="set case_id in CreateStory"
            )
        return states
    if request.task_id:
        if graph.tasks(request.task_id):
            return (graph.story(graph.task(request.task_id).story_id),)
        if not graph.work(f"task:{request.task_id}", limit=1):
            raise NotFound(f"unknown task {request.task_id[:64]!r}", field="task_id")
        return (graph.common(),)
    # A request for memories alone gets nothing of the project.
    return () if request.namespaces else (graph.common(),)


def _story(graph: ContextGraph, story_id: str) -> StoryState:
    """A story; for a story that was worked on but never created, only its work."""
    if story_id not in graph.stories and graph.work(f"story:{story_id}", limit=1):
        return StoryState(story_id=story_id)
    return graph.story(story_id)


def _check(request: ContextRequest) -> None:
    check_token_budget(request.token_budget)
    check_namespaces(request.namespaces, field="namespaces")
    check_entities(request.entities, field="entities")
    if request.entities and not request.namespaces:
        raise InvalidRequest(
            "entities are given, but memories is not set",
            field="namespaces",
            hint="set memories to the namespaces to search",
        )


def _each_once(*groups: tuple[Recollection, ...]) -> tuple[Recollection, ...]:
    """The recollections of the groups in order, each memory once."""
    once: dict[str, Recollection] = {}
    for recollection in (recollection for group in groups for recollection in group):
        once.setdefault(recollection.memory.memory_id, recollection)
    return tuple(once.values())


def _is_wanted(draft: Draft, request: ContextRequest) -> bool:
    if draft.kind == "decision":
        return request.include_decisions
    return request.include_history or draft.kind != "history"


def _phase(states: tuple[StoryState, ...]) -> Phase | None:
    """The phase of the one story; several have none in common."""
    story = states[0].story if len(states) == 1 else None
    return story.phase if story else None


def _own_words(states: tuple[StoryState, ...], request: ContextRequest) -> str:
    """The text of the task, as the query of a request that has none."""
    task = next((state.tasks[request.task_id] for state in states if request.task_id in state.tasks), None)
    return f"{task.title}\n{task.description}" if task else ""

"""Prompt blocks: project knowledge, the most relevant first, as much as fits a token budget.

The relevance of a block is the weight of its section for the role in the phase (`drafts.weight`), times its nearness to
the task, times its fit to the query (Okapi BM25 over the blocks) and its newness among them. No clock is involved, so
equal knowledge gives equal text, and with it an equal version.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from swe_ai_fleet.agents.history import BYTES_PER_TOKEN
from swe_ai_fleet.agents.sub_agents.recall import Index, names
from swe_ai_fleet.domain.context import ContextBlock, ContextRequest, GatheredContext, Phase
from swe_ai_fleet.domain.errors import InvalidRequest, NotFound
from swe_ai_fleet.domain.memory import MemoryScope, Recollection, check_entities, check_namespaces
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.domain.text import disarmed, one_line, visible
from swe_ai_fleet.extensions.knowledge.drafts import MAX_SIBLINGS, ContextDraft, Section, drafts, of_memory, weight
from swe_ai_fleet.extensions.knowledge.graph import ContextGraph
from swe_ai_fleet.extensions.knowledge.store import ContextStore
from swe_ai_fleet.extensions.knowledge.story import StoryState
from swe_ai_fleet.orchestrator.context_blocks import HEAD, framed, rendered, tokens
from swe_ai_fleet.ports import Memories, SecretMask

MAX_TOKENS = 200_000
_PLAIN, _FIT, _NEW = 0.4, 0.45, 0.15
_RANKED_CHARS = 1_500
_ALL_RANKED_CHARS = 400_000
"""The most characters that are ranked, of all blocks together: of very many blocks, less of each."""
_MOST_OF_ROOM = 0.3
"""No block takes more than this share of the room while others need some."""
_LEAST_BYTES = 160
"""With less room left, a block is left out, since a shorter cut would be useless."""
_MAX_OMITTED = 50
_TITLE_CHARS = 240
_ORDER = {section: place for place, section in enumerate(Section)}
_MAX_BLOCK_CHARS = 24_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewpoint:
    """The reader of a context, and its purpose; all fields are optional."""

    role: Role | None = None
    phase: Phase | None = None
    query: str = ""


def check_token_budget(token_budget: int) -> None:
    """Check the token budget of a context; 0: the default. Raises InvalidRequest."""
    if not 0 <= token_budget <= MAX_TOKENS:
        raise InvalidRequest(
            f"token_budget is {token_budget}", field="token_budget", hint=f"between 0 and {MAX_TOKENS}"
        )


def compose(
    drafts: Sequence[ContextDraft],
    viewpoint: Viewpoint,
    *,
    token_budget: int,
    mask: SecretMask,
    recalled: Sequence[Recollection] = (),
    omitted: Sequence[str] = (),
) -> GatheredContext:
    """The context composed of these drafts.

    Args:
        drafts: The parts; sections without weight for the role are left out without a note.
        viewpoint: The reader of the context, and its purpose.
        token_budget: The size limit of the whole text, estimated at 3.5 bytes a token.
        mask: Hides secrets.
        recalled: The memories that are among the drafts.
        omitted: Notes on missing parts.
    """
    ranked = rank(drafts, viewpoint)
    room = math.floor(token_budget * BYTES_PER_TOKEN) - _size(framed("x"))
    blocks, left_out = _packed(ranked, room, lambda text: disarmed(mask(visible(text))))
    text = rendered(blocks)
    return GatheredContext(
        text=text,
        blocks=tuple(blocks),
        tokens=tokens(text),
        version=hashlib.sha256(text.encode()).hexdigest(),
        omitted=(*omitted, *left_out),
        recalled=tuple(recalled),
    )


def rank(drafts: Sequence[ContextDraft], viewpoint: Viewpoint) -> list[tuple[float, ContextDraft]]:
    """(relevance from 0 to 1, draft) of the drafts with weight for the viewpoint, the most relevant first."""
    visible = [draft for draft in drafts if weight(draft.section, viewpoint.role, viewpoint.phase) > 0]
    fits = [0.0] * len(visible)
    if viewpoint.query.strip():
        share = min(_RANKED_CHARS, _ALL_RANKED_CHARS // len(visible)) if visible else 0
        index = Index([f"{draft.title}\n{draft.text[:share]}" for draft in visible])
        for score, number in index.rank(viewpoint.query):
            fits[number] = min(1.0, score)
    places = {place: number for number, place in enumerate(sorted({draft.place for draft in visible}))}
    last = max(1, len(places) - 1)
    scored = [
        (
            weight(draft.section, viewpoint.role, viewpoint.phase)
            * draft.nearness
            * (_PLAIN + _FIT * fit + _NEW * places[draft.place] / last),
            draft,
        )
        for draft, fit in zip(visible, fits, strict=True)
    ]
    return sorted(scored, key=lambda pair: (-pair[0], _ORDER[pair[1].section], pair[1].title, pair[1].text))


def _packed(
    ranked: Sequence[tuple[float, ContextDraft]], room: int, clean: Callable[[str], str]
) -> tuple[list[ContextBlock], list[str]]:
    """The blocks that fit so many bytes, and the titles of those that do not."""
    placed: list[tuple[ContextBlock, str]] = []
    left_out: list[str] = []
    most = max(_LEAST_BYTES, math.floor(room * _MOST_OF_ROOM))
    for number, (relevance, draft) in enumerate(ranked):
        if room < _LEAST_BYTES and len(left_out) >= _MAX_OMITTED:
            left_out.append(f"{len(ranked) - number} more")
            break
        title = one_line(clean(draft.title), _TITLE_CHARS)
        # The overhead of a block: its title, and the empty line before the next block.
        header = _size(f"{HEAD.format(title)}\n\n")
        text = clean(draft.text[:_MAX_BLOCK_CHARS]).strip() if room >= _LEAST_BYTES else ""
        fitted = _fitted(text, min(room, most) - header) if room >= _LEAST_BYTES else None
        if fitted is None:
            left_out.append(title)
            continue
        room -= header + _size(fitted)
        block = ContextBlock(
            kind=draft.kind, title=title, text=fitted, tokens=tokens(fitted), relevance=round(relevance, 4)
        )
        placed.append((block, text))
    return _widened(placed, room), left_out


def _widened(placed: Sequence[tuple[ContextBlock, str]], room: int) -> list[ContextBlock]:
    """The blocks; cut blocks get more of their text while there is room left."""
    blocks: list[ContextBlock] = []
    for block, whole in placed:
        more = _fitted(whole, _size(block.text) + room) if block.text != whole and room > 0 else None
        if more is not None and _size(more) > _size(block.text):
            room -= _size(more) - _size(block.text)
            block = replace(block, text=more, tokens=tokens(more))
        blocks.append(block)
    return blocks


def _fitted(text: str, room: int) -> str | None:
    """The text, cut at the end of a line if it does not fit; None if too little would be left."""
    if _size(text) <= room:
        return text
    note = "[... the rest is left out ...]"
    room -= len(note.encode()) + 1
    if room < _LEAST_BYTES // 2:
        return None
    head = text.encode()[:room].decode("utf-8", "ignore")
    end = head.rfind("\n")
    if end < len(head) // 2:
        # A long line is cut between words.
        end = max(end, head.rfind(" "))
    head = head[:end].rstrip() if end > 0 else head
    return f"{head}\n{note}"


def _size(text: str) -> int:
    return len(text.encode())


DEFAULT_TOKENS = 4_000
RECALLED = 5
NAMED = 3
"""The most memories of each entity."""
_AT_ONCE = 4
_MAX_STORIES = 20
"""The most stories of a case."""
_QUERY_CHARS = 4_000


class ContextGatherer:
    """A `ContextSource`.

    Args:
        store: The project knowledge.
        memories: Long-term memories; None: nothing is recalled.
        mask: Hides secrets in the text.
        token_budget: The budget of a request without one.
    """

    def __init__(
        self, store: ContextStore, memories: Memories | None, *, mask: SecretMask, token_budget: int = DEFAULT_TOKENS
    ) -> None:
        self._store = store
        self._memories = memories
        self._mask = mask
        self._token_budget = token_budget

    async def gather(self, request: ContextRequest) -> GatheredContext:
        """The most relevant knowledge that fits the budget. Raises InvalidRequest, NotFound, Unavailable.

        If memories are requested too, an unknown story, case or task is no fault: `omitted` names it.
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
            query=(request.query.strip() or _task_text(states, request))[:_QUERY_CHARS],
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
    """The stories that a request is about; the project as a whole if it names none.

    Raises NotFound (the story, case or task is unknown), InvalidRequest (a task of several stories).
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
    # A request for memories alone gets no knowledge of the project.
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


def _is_wanted(draft: ContextDraft, request: ContextRequest) -> bool:
    if draft.kind == "decision":
        return request.include_decisions
    return request.include_history or draft.kind != "history"


def _phase(states: tuple[StoryState, ...]) -> Phase | None:
    """The phase of a single story; None for several."""
    story = states[0].story if len(states) == 1 else None
    return story.phase if story else None


def _task_text(states: tuple[StoryState, ...], request: ContextRequest) -> str:
    """The text of the task, as the query of a request that has none."""
    task = next((state.tasks[request.task_id] for state in states if request.task_id in state.tasks), None)
    return f"{task.title}\n{task.description}" if task else ""

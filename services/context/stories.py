"""Pages of stories."""

from __future__ import annotations

from fleet.context.v1 import context_pb2 as pb
from services.context.bounds import MAX_REPLY_BYTES, fitting
from services.context.pages import page_behind, page_token
from swe_ai_fleet.context.drafts import OPEN
from swe_ai_fleet.context.graph import ContextGraph
from swe_ai_fleet.context.story import StoryState
from swe_ai_fleet.contract import from_enum, to_message
from swe_ai_fleet.domain.context import Phase, Story
from swe_ai_fleet.domain.moment import milliseconds

DEFAULT_PAGE_SIZE = 50


def stories_page(graph: ContextGraph, request: pb.ListStoriesRequest) -> pb.ListStoriesResponse:
    """The page asked for, the story that was changed last first. Raises InvalidRequest."""
    size = request.page_size or DEFAULT_PAGE_SIZE
    phases = {from_enum(Phase, pb.Phase, one) for one in request.phases} - {None}
    behind = page_behind(request)
    states = graph.case(request.case_id) if request.case_id else tuple(graph.stories.values())
    found = [
        (_place(state), state, state.story)
        for state in states
        if state.story is not None and (not phases or state.story.phase in phases)
    ]
    if behind is not None:
        found = [one for one in found if one[0] < behind]
    found.sort(key=lambda one: one[0], reverse=True)
    page = fitting((_card(state, story) for _, state, story in found[:size]), MAX_REPLY_BYTES)
    more = len(page) < len(found)
    return pb.ListStoriesResponse(
        stories=page, next_page_token=page_token(request, found[len(page) - 1][0]) if more else ""
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

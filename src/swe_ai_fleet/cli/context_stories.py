"""`fleet context stories`: which stories there are."""

from __future__ import annotations

from typing import Annotated

import typer

from fleet.context.v1 import context_pb2 as pb
from swe_ai_fleet.cli.calls import Calls
from swe_ai_fleet.cli.context_client import context_client
from swe_ai_fleet.cli.edge import carry_out_with
from swe_ai_fleet.cli.exits import Exit
from swe_ai_fleet.cli.messages import document, enum_name, enum_word
from swe_ai_fleet.cli.options import ContextServer, ContextToken, Json
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.cli.tables import print_list
from swe_ai_fleet.watching.events import moment

_MAX_PAGE = 500


def stories(
    *,
    case: Annotated[str, typer.Option(metavar="ID", help="Only those of this case.")] = "",
    phase: Annotated[
        list[str] | None,
        typer.Option(help="Only those in this phase: plan, design, build, test, review or done. May be given again."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many to show at most.")] = 50,
    server: ContextServer = "",
    token: ContextToken = "",
    json: Json = False,
) -> None:
    """List the stories, the one that was changed last first."""

    async def work(screen: Screen, context: Calls) -> Exit:
        phases = [enum_name(pb.Phase, one, field="phase") for one in phase or ()]
        request = pb.ListStoriesRequest(case_id=case, phases=phases)
        found: list[pb.StoryCard] = []
        while True:
            request.page_size = min(limit - len(found), _MAX_PAGE)
            answer = await context.one("ListStories", request, pb.ListStoriesResponse)
            found.extend(answer.stories)
            request.page_token = answer.next_page_token
            if not request.page_token or len(found) >= limit:
                break
        print_list(
            screen,
            {"stories": [document(one) for one in found], "more": bool(request.page_token)},
            ("story", "title", "phase", "case", "tasks", "decisions", "changed (UTC)"),
            [_row(one) for one in found],
            nothing="there is no such story" if case or phases else "there is no story yet",
        )
        if request.page_token:
            screen.note("there are more; --limit shows them")
        return Exit.ACCEPTED

    carry_out_with(context_client, work, server=server, token=token, json=json)


def _row(story: pb.StoryCard) -> tuple[str, ...]:
    return (
        story.story_id,
        story.title,
        enum_word(pb.Phase, story.phase),
        story.case_id,
        f"{story.open_task_count} of {story.task_count} open" if story.task_count else "none",
        str(story.decision_count),
        moment(story.changed_at_ms)[:19],
    )

"""`fleet context stories`: which stories there are."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from fleet.context.v1 import context_pb2 as pb
from swe_ai_fleet.cli.context_client import ContextServer, ContextToken, context_client, document, enum_name
from swe_ai_fleet.cli.edge import carry_out
from swe_ai_fleet.cli.exits import Exit
from swe_ai_fleet.cli.options import Json
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.cli.tables import enum_word, plain_table
from swe_ai_fleet.settings import Settings

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

    async def work(screen: Screen, settings: Settings) -> Exit:
        phases = [enum_name(pb.Phase, "PHASE_", one, field="phase") for one in phase or ()]
        request = pb.ListStoriesRequest(case_id=case, phases=phases)
        found: list[pb.StoryCard] = []
        async with context_client(settings, server=server, token=token) as client:
            while True:
                request.page_size = min(limit - len(found), _MAX_PAGE)
                answer = await client.call("ListStories", request, pb.ListStoriesResponse)
                found.extend(answer.stories)
                request.page_token = answer.next_page_token
                if not request.page_token or len(found) >= limit:
                    break
        if screen.json:
            screen.document({"stories": [document(one) for one in found], "more": bool(request.page_token)})
            return Exit.ACCEPTED
        if not found:
            screen.note("there is no such story" if case or phases else "there is no story yet")
            return Exit.ACCEPTED
        rows = [(one.story_id, one.title, _phase(one), one.case_id, _tasks(one), _decisions(one), _changed(one))
                for one in found]  # fmt: skip
        screen.out.print(plain_table(("story", "title", "phase", "case", "tasks", "decisions", "changed"), rows))
        if request.page_token:
            screen.note("there are more; --limit shows them")
        return Exit.ACCEPTED

    carry_out(work, json=json)


def _phase(story: pb.StoryCard) -> str:
    return enum_word(pb.Phase.Name(story.phase), "PHASE_")


def _tasks(story: pb.StoryCard) -> str:
    return f"{story.open_task_count} of {story.task_count} open" if story.task_count else "none"


def _decisions(story: pb.StoryCard) -> str:
    return str(story.decision_count)


def _changed(story: pb.StoryCard) -> str:
    return datetime.fromtimestamp(story.changed_at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")

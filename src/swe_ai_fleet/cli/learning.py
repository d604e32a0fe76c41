"""`fleet rate` and `fleet recommend`: how good work was, and what experience says about more of it."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from fleet.context.v1 import context_pb2 as pb
from swe_ai_fleet.cli.context_client import (
    ContextServer,
    ContextToken,
    caller_name,
    context_client,
    document,
    enum_name,
)
from swe_ai_fleet.cli.edge import carry_out
from swe_ai_fleet.cli.exits import Exit
from swe_ai_fleet.cli.options import Json
from swe_ai_fleet.cli.order import repo_ref
from swe_ai_fleet.cli.place import fleet_client
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.cli.text import one_line
from swe_ai_fleet.domain.outcome import BEST_RATING, LEAST_RATING
from swe_ai_fleet.domain.task import UncommittedChanges
from swe_ai_fleet.settings import Settings

_CHOICES = ("approach", "council", "model_profile", "agents")


def rate(
    name: Annotated[str, typer.Argument(metavar="ID", help="An execution id, a task id, or a plan session's id.")],
    rating: Annotated[int, typer.Argument(min=LEAST_RATING, max=BEST_RATING, help="From 1 (useless) to 5.")],
    *,
    server: ContextServer = "",
    token: ContextToken = "",
    json: Json = False,
) -> None:
    """Say how good the outcome of an execution was; recommendations learn from it."""

    async def work(screen: Screen, settings: Settings) -> Exit:
        subject = await _subject(settings, name, anywhere=bool(server))
        async with context_client(settings, server=server, token=token, caller=caller_name()) as client:
            request = pb.RecordOutcomeRequest(rating=pb.Rating(subject_id=subject, rating=rating))
            answer = await client.call("RecordOutcome", request, pb.RecordOutcomeResponse)
        if screen.json:
            screen.document(document(answer.outcome))
        else:
            screen.line(f"{subject}: rated {answer.outcome.rating} of {BEST_RATING}")
        return Exit.ACCEPTED

    carry_out(work, json=json)


def recommend(
    goal: Annotated[str, typer.Argument(help="What is to be done, in your own words.")],
    *,
    repo: Annotated[str, typer.Option(metavar="PATH|URL", help="Where: outcomes there count more.")] = "",
    role: Annotated[str, typer.Option(help="DEV, QA, ARCHITECT, DEVOPS or DATA.")] = "",
    profile: Annotated[list[str] | None, typer.Option(help="A model profile to weigh; may be repeated.")] = None,
    agents: Annotated[list[int] | None, typer.Option(help="A number of agents to weigh; may be repeated.")] = None,
    server: ContextServer = "",
    token: ContextToken = "",
    json: Json = False,
) -> None:
    """Say what experience suggests for a task, and how sure that is. Nothing is started or changed."""

    async def work(screen: Screen, settings: Settings) -> Exit:
        place = repo_ref(repo, ref="", uncommitted=UncommittedChanges.IGNORE) if repo else None
        request = pb.RecommendApproachRequest(
            goal=goal,
            role=enum_name(pb.Role, "ROLE_", role, field="role"),
            repository=(place.path or place.url) if place is not None else "",
            model_profiles=profile or sorted(settings.model_profiles),
            agents=agents or (),
        )
        async with context_client(settings, server=server, token=token) as client:
            answer = await client.call("RecommendApproach", request, pb.RecommendApproachResponse)
        if screen.json:
            screen.document(document(answer))
        else:
            _show(screen, answer)
        return Exit.ACCEPTED

    carry_out(work, json=json)


async def _subject(settings: Settings, name: str, *, anywhere: bool) -> str:
    """What is rated: the newest execution of a task, or the id itself where it is one."""
    try:
        return str(UUID(name))
    except ValueError:
        if anywhere:
            return name
    async with fleet_client(settings, server="", token="") as client:
        return await client.find(name)


def _show(screen: Screen, answer: pb.RecommendApproachResponse) -> None:
    screen.line(f"goal: {answer.goal_type}; {answer.outcomes} outcomes are known", style="bold")
    for choice in _CHOICES:
        advice: pb.Advice = getattr(answer, choice)
        screen.line(f"{choice.replace('_', ' ')}: {one_line(advice.value)}", style="bold")
        screen.line(f"  {one_line(advice.reason)}")
        for option in advice.options:
            screen.line(
                f"  {one_line(option.value)}: {option.expected:.2f} ({option.low:.2f} to {option.high:.2f}), "
                f"tried {option.tried:g}, best with {option.best:.0%}"
            )

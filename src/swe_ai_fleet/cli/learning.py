"""`fleet rate` and `fleet recommend`: how good work was, and what experience says about more of it."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from fleet.context.v1 import context_pb2 as pb
from fleet.orchestrator.v1 import orchestrator_pb2 as pb_fleet
from swe_ai_fleet.cli.client import connect
from swe_ai_fleet.cli.context_client import context_client
from swe_ai_fleet.cli.edge import carry_out
from swe_ai_fleet.cli.exits import Exit
from swe_ai_fleet.cli.messages import document, enum_name
from swe_ai_fleet.cli.options import ContextServer, ContextToken, Json
from swe_ai_fleet.cli.order import repo_ref
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.domain.outcome import BEST_RATING, LEAST_RATING
from swe_ai_fleet.domain.review import VERIFIER_PROFILE
from swe_ai_fleet.domain.task import UncommittedChanges
from swe_ai_fleet.learning.recommending import DEFAULT
from swe_ai_fleet.runtime.place import Place, find_place
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.watching.text import command_line, one_line

_GOAL = 120
_COMMENT = 400
_CHOICES = ("approach", "council", "model_profile", "agents")


def rate(
    name: Annotated[str, typer.Argument(metavar="ID", help="An execution id, a task id, or a plan session's id.")],
    rating: Annotated[int, typer.Argument(min=LEAST_RATING, max=BEST_RATING, help="From 1 (useless) to 5.")],
    *,
    comment: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Why; shown with the rating. Left out: the earlier one stands.")
    ] = None,
    fleet: Annotated[
        str,
        typer.Option(envvar="FLEET_SERVER", metavar="HOST:PORT", help="A fleet that knows the task, not this home's."),
    ] = "",
    fleet_token: Annotated[str, typer.Option(envvar="FLEET_TOKEN", hidden=True)] = "",
    server: ContextServer = "",
    token: ContextToken = "",
    json: Json = False,
) -> None:
    """Say how good the outcome of an execution was; recommendations learn from it."""

    async def work(screen: Screen, settings: Settings) -> Exit:
        subject = await _subject(name, place=find_place(settings, server=fleet, token=fleet_token))
        async with context_client(settings, server=server, token=token) as client:
            request = pb.RecordOutcomeRequest(rating=pb.Rating(subject_id=subject, rating=rating, comment=comment))
            answer = await client.one("RecordOutcome", request, pb.RecordOutcomeResponse)
        if screen.json:
            screen.document(document(answer.outcome))
        else:
            outcome = answer.outcome
            screen.line(f"execution {subject}: {one_line(outcome.goal, _GOAL)}")
            screen.line(f"rated {outcome.rating} of {BEST_RATING}", style="bold")
            if outcome.comment:
                screen.line(f"because: {one_line(outcome.comment, _COMMENT)}")
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
            role=enum_name(pb.Role, role, field="role"),
            repository=(place.path or place.url) if place is not None else "",
            model_profiles=profile or sorted(settings.model_profiles.keys() - {VERIFIER_PROFILE}),
            agents=agents or (),
        )
        async with context_client(settings, server=server, token=token) as client:
            answer = await client.one("RecommendApproach", request, pb.RecommendApproachResponse)
        if screen.json:
            screen.document(document(answer))
        else:
            _show(screen, answer)
        return Exit.ACCEPTED

    carry_out(work, json=json)


async def _subject(name: str, *, place: Place | None) -> str:
    """What is rated: the newest execution of a task, or the name itself where no fleet knows a task by it."""
    try:
        return str(UUID(name))
    except ValueError:
        pass
    if place is None:
        return name
    async with connect(place.address, place.token, tls=place.tls) as client:
        found = await client.executions(pb_fleet.ListExecutionsRequest(task_id=name, page_size=1))
    return found.executions[0].execution_id if found.executions else name


def _show(screen: Screen, answer: pb.RecommendApproachResponse) -> None:
    known = f"{answer.outcomes} outcomes are known" if answer.outcomes != 1 else "1 outcome is known"
    screen.line(f"goal type {answer.goal_type}; {known}", style="bold")
    for choice in _CHOICES:
        advice: pb.Advice = getattr(answer, choice)
        screen.line(f"{choice.replace('_', ' ')}: {one_line(advice.value)}", style="bold")
        screen.line(f"  {one_line(advice.reason)}")
        for option in advice.options:
            screen.line(
                f"  {one_line(option.value)}: {option.expected:.2f} ({option.low:.2f} to {option.high:.2f}), "
                f"tried {option.tried:.3g}, the best with a chance of {option.best:.0%}"
            )
    if flags := _flags(answer):
        screen.note(f"to follow it: fleet run {flags} ...")


def _flags(answer: pb.RecommendApproachResponse) -> str:
    """What is recommended, as options of `fleet run`; what is the default anyway, and what has no option, left out."""
    kind, _, mode = answer.approach.value.partition("/")
    profile, agents = answer.model_profile.value, answer.agents.value
    flags = [
        "--deliberate-only" if kind == "deliberate" else "",
        f"--mode {command_line([mode])}" if mode and kind in ("deliberate", "orchestrate") else "",
        f"--profile {command_line([profile])}" if profile not in ("", DEFAULT) else "",
        f"--agents {agents}" if agents.isdecimal() else "",
    ]
    return " ".join(flag for flag in flags if flag)

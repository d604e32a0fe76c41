"""`fleet context change`: fields of a story, of one of its tasks or of a decision."""

from __future__ import annotations

from typing import Annotated

import typer

from fleet.context.v1 import context_pb2 as pb
from swe_ai_fleet.cli.calls import Calls
from swe_ai_fleet.cli.context_client import context_client
from swe_ai_fleet.cli.edge import carry_out_with
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.messages import document, enum_name, enum_word
from swe_ai_fleet.cli.options import ContextServer, ContextToken, Json
from swe_ai_fleet.cli.pairs import pairs
from swe_ai_fleet.cli.screen import Screen

_ANYBODY = "anybody"


def change(
    story_id: Annotated[
        str, typer.Argument(metavar="[STORY]", help="The story's id; without one, a decision of the whole project.")
    ] = "",
    *,
    task: Annotated[str, typer.Option(metavar="ID", help="One of its tasks.")] = "",
    decision: Annotated[str, typer.Option(metavar="ID", help="One of its decisions.")] = "",
    accept: Annotated[bool, typer.Option("--accept", help="From now on the decision holds.")] = False,
    title: Annotated[str | None, typer.Option(help="In a line.")] = None,
    description: Annotated[str | None, typer.Option(help="What is wanted, and why.")] = None,
    criterion: Annotated[
        list[str] | None, typer.Option(help="What has to hold for it to be done; all of them anew.")
    ] = None,
    note: Annotated[list[str] | None, typer.Option(metavar="K=V", help="A note; an empty one is removed.")] = None,
    state: Annotated[str, typer.Option(help="Of a task: open, in_progress, done or dropped.")] = "",
    role: Annotated[
        str, typer.Option(help=f"Of a task: DEV, QA, ARCHITECT, DEVOPS, DATA, or {_ANYBODY} for everybody's.")
    ] = "",
    after: Annotated[
        list[str] | None, typer.Option(metavar="TASK", help="A task that comes before this one; all of them anew.")
    ] = None,
    first: Annotated[bool, typer.Option("--first", help="No task comes before this one.")] = False,
    expect: Annotated[
        int | None, typer.Option("--expect", min=0, metavar="N", help="Only if the story stands at this version.")
    ] = None,
    server: ContextServer = "",
    token: ContextToken = "",
    json: Json = False,
) -> None:
    """Change a story, a task or a decision; what is not named stays."""

    async def work(screen: Screen, context: Calls) -> Exit:
        if first and after:
            raise CommandFault("--first with --after", exit_code=Exit.USAGE, field="after", hint="one of the two")
        request = pb.UpdateContextRequest(
            story_id=story_id,
            task_id=task,
            decision_id=decision,
            decision_state=pb.DECISION_STATE_ACCEPTED if accept else pb.DECISION_STATE_UNSPECIFIED,
            title=title,
            description=description,
            acceptance_criteria=pb.Texts(values=criterion) if criterion else None,
            notes=pairs(note or (), "--note"),
            state=enum_name(pb.TaskState, state, field="state"),
            role=_role(role),
            depends_on=pb.Texts(values=after) if after or first else None,
            expected_version=expect,
        )
        answer = await context.one("UpdateContext", request, pb.UpdateContextResponse)
        screen.result(document(answer), f"{_changed(answer)} (version {answer.version})")
        return Exit.ACCEPTED

    carry_out_with(context_client, work, server=server, token=token, json=json)


def _role(word: str) -> str | None:
    """The role's name in the request; None leaves it as it is."""
    if word.strip().lower() == _ANYBODY:
        return "ROLE_UNSPECIFIED"
    return enum_name(pb.Role, word, field="role") if word else None


def _changed(answer: pb.UpdateContextResponse) -> str:
    if answer.HasField("decision"):
        state = enum_word(pb.DecisionState, answer.decision.state)
        return f"decision {answer.decision.decision_id} is {state}"
    if answer.HasField("task"):
        state = enum_word(pb.TaskState, answer.task.state).replace("_", " ")
        return f"task {answer.task.task_id} is {state}"
    return f"story {answer.story.story_id} is changed"

"""`fleet context`: what a project knows of itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from fleet.context.v1 import context_pb2 as pb
from swe_ai_fleet.cli.calls import Calls
from swe_ai_fleet.cli.context_change import change
from swe_ai_fleet.cli.context_client import context_client
from swe_ai_fleet.cli.context_stories import stories
from swe_ai_fleet.cli.edge import carry_out_with
from swe_ai_fleet.cli.exits import Exit
from swe_ai_fleet.cli.messages import document, enum_name, enum_word
from swe_ai_fleet.cli.options import ContextServer, ContextToken, Json
from swe_ai_fleet.cli.screen import Screen

context_app = typer.Typer(
    help="Stories, their tasks and decisions, and what agents are told of them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

context_app.command()(stories)

_StoryId = Annotated[str, typer.Argument(metavar="STORY", help="The story's id.")]
_Title = Annotated[str, typer.Argument(help="In a line.")]
_Version = Annotated[
    int | None, typer.Option("--expect", min=0, metavar="N", help="Only if the story stands at this version.")
]
_Roles = "DEV, QA, ARCHITECT, DEVOPS or DATA"
_Phases = "plan, design, build, test, review or done"


@context_app.command()
def story(
    story_id: _StoryId,
    title: _Title,
    *,
    description: Annotated[str, typer.Option(help="What is wanted, and why.")] = "",
    criterion: Annotated[list[str] | None, typer.Option(help="What has to hold for it to be done.")] = None,
    case: Annotated[str, typer.Option(metavar="ID", help="The larger undertaking that it belongs to.")] = "",
    phase: Annotated[str, typer.Option(help=f"{_Phases}. Default: plan.")] = "",
    server: ContextServer = "",
    token: ContextToken = "",
    json: Json = False,
) -> None:
    """Begin a story."""

    async def work(screen: Screen, context: Calls) -> Exit:
        request = pb.CreateStoryRequest(
            story=pb.Story(
                story_id=story_id,
                title=title,
                description=description,
                acceptance_criteria=criterion,
                case_id=case,
                phase=enum_name(pb.Phase, phase, field="phase"),
            )
        )
        answer = await context.one("CreateStory", request, pb.CreateStoryResponse)
        screen.result(
            document(answer),
            f"story {answer.story.story_id} is in phase {_phase(answer.story.phase)} (version {answer.version})",
        )
        return Exit.ACCEPTED

    carry_out_with(context_client, work, server=server, token=token, json=json)


@context_app.command()
def task(
    story_id: _StoryId,
    task_id: Annotated[str, typer.Argument(metavar="TASK", help="The task's id.")],
    title: _Title,
    *,
    description: Annotated[str, typer.Option(help="What is to be done.")] = "",
    role: Annotated[str, typer.Option(help=f"{_Roles}. Default: anybody's.")] = "",
    after: Annotated[
        list[str] | None, typer.Option(metavar="TASK", help="A task of the story that comes first.")
    ] = None,
    expect: _Version = None,
    server: ContextServer = "",
    token: ContextToken = "",
    json: Json = False,
) -> None:
    """Add a task to a story."""

    async def work(screen: Screen, context: Calls) -> Exit:
        request = pb.CreateTaskRequest(
            task=pb.Task(
                task_id=task_id,
                story_id=story_id,
                title=title,
                description=description,
                role=enum_name(pb.Role, role, field="role"),
                depends_on=after,
            ),
            expected_version=expect,
        )
        answer = await context.one("CreateTask", request, pb.CreateTaskResponse)
        screen.result(
            document(answer),
            f"task {answer.task.task_id} is in story {answer.task.story_id} (version {answer.version})",
        )
        return Exit.ACCEPTED

    carry_out_with(context_client, work, server=server, token=token, json=json)


@context_app.command()
def decide(
    decision_id: Annotated[str, typer.Argument(metavar="DECISION", help="The decision's id.")],
    title: _Title,
    *,
    story: Annotated[str, typer.Option(metavar="ID", help="The story it is for. Default: the whole project.")] = "",
    why: Annotated[str, typer.Option(help="The reason.")] = "",
    instead_of: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="What was not chosen.")] = None,
    supersedes: Annotated[str, typer.Option(metavar="DECISION", help="The decision whose place it takes.")] = "",
    role: Annotated[list[str] | None, typer.Option(help=f"Whom it matters to: {_Roles}. Default: everybody.")] = None,
    affects: Annotated[list[str] | None, typer.Option(metavar="TASK", help="A task that it affects.")] = None,
    proposed: Annotated[bool, typer.Option("--proposed", help="It does not hold yet.")] = False,
    expect: _Version = None,
    server: ContextServer = "",
    token: ContextToken = "",
    json: Json = False,
) -> None:
    """Add a decision, and why it was made."""

    async def work(screen: Screen, context: Calls) -> Exit:
        request = pb.AddProjectDecisionRequest(
            decision=pb.Decision(
                decision_id=decision_id,
                story_id=story,
                title=title,
                rationale=why,
                alternatives=instead_of,
                state=pb.DECISION_STATE_PROPOSED if proposed else pb.DECISION_STATE_ACCEPTED,
                supersedes=supersedes,
                roles=[enum_name(pb.Role, one, field="role") for one in role or ()],
                task_ids=affects,
            ),
            expected_version=expect,
        )
        answer = await context.one("AddProjectDecision", request, pb.AddProjectDecisionResponse)
        if screen.json:
            screen.document(document(answer))
        else:
            state = enum_word(pb.DecisionState, answer.decision.state)
            screen.line(f"decision {answer.decision.decision_id} is {state} (version {answer.version})")
        return Exit.ACCEPTED

    carry_out_with(context_client, work, server=server, token=token, json=json)


@context_app.command()
def phase(
    story_id: _StoryId,
    phase: Annotated[str, typer.Argument(metavar="PHASE", help=_Phases)],
    *,
    reason: Annotated[str, typer.Option(help="Why; needed on the way back.")] = "",
    expect: _Version = None,
    server: ContextServer = "",
    token: ContextToken = "",
    json: Json = False,
) -> None:
    """Take a story to its next phase, or back to an earlier one."""

    async def work(screen: Screen, context: Calls) -> Exit:
        request = pb.TransitionPhaseRequest(
            story_id=story_id,
            phase=enum_name(pb.Phase, phase, field="phase"),
            reason=reason,
            expected_version=expect,
        )
        answer = await context.one("TransitionPhase", request, pb.TransitionPhaseResponse)
        if screen.json:
            screen.document(document(answer))
        else:
            way = f"{_phase(answer.previous)} -> {_phase(answer.story.phase)}"
            screen.line(f"story {answer.story.story_id}: {way} (version {answer.version})")
        return Exit.ACCEPTED

    carry_out_with(context_client, work, server=server, token=token, json=json)


@context_app.command()
def show(
    story_id: Annotated[str, typer.Argument(metavar="[STORY]", help="The story's id.")] = "",
    *,
    case: Annotated[str, typer.Option(metavar="ID", help="All stories of a case.")] = "",
    task: Annotated[str, typer.Option(metavar="ID", help="One task.")] = "",
    role: Annotated[str, typer.Option(help=f"As this role gets it: {_Roles}.")] = "",
    phase: Annotated[str, typer.Option(help=f"For this phase: {_Phases}. Default: the story's.")] = "",
    query: Annotated[str, typer.Option(help="What it is for; what is nearest to it goes first.")] = "",
    tokens: Annotated[int, typer.Option(min=0, help="The most it may take. Default: the server's.")] = 0,
    namespace: Annotated[
        list[str] | None,
        typer.Option("--namespace", "-n", metavar="NAME", help="Memories to recall: fleet, agent:…, repository:…."),
    ] = None,
    server: ContextServer = "",
    token: ContextToken = "",
    json: Json = False,
) -> None:
    """Show the context that agents get for a story; without one, what holds for the whole project."""

    async def work(screen: Screen, context: Calls) -> Exit:
        request = pb.GetContextRequest(
            case_id=case,
            story_id=story_id,
            task_id=task,
            role=enum_name(pb.Role, role, field="role"),
            phase=enum_name(pb.Phase, phase, field="phase"),
            query=query,
            token_budget=tokens,
            namespaces=namespace,
        )
        answer = await context.one("GetContext", request, pb.GetContextResponse)
        if screen.json:
            screen.document(document(answer))
            return Exit.ACCEPTED
        nothing = (
            "nothing is known" if story_id or case or task else "nothing holds for the whole project; name a STORY"
        )
        _lines(screen, answer.context_text.splitlines(), nothing=nothing)
        if not answer.context_text:
            return Exit.ACCEPTED
        at = f", the story at version {answer.version}" if answer.version else ""
        left_out = f", not in it: {', '.join(answer.omitted)}" if answer.omitted else ""
        screen.note(f"about {answer.token_count} tokens, content {answer.version_hash[:12]}{at}{left_out}")
        return Exit.ACCEPTED

    carry_out_with(context_client, work, server=server, token=token, json=json)


@context_app.command()
def relations(
    node: Annotated[
        str,
        typer.Argument(help="<kind>:<id>, the kind one of case, story, task, decision, execution, commit, file."),
    ],
    *,
    depth: Annotated[int, typer.Option(min=1, max=5, help="How many relations away to go.")] = 1,
    kind: Annotated[list[str] | None, typer.Option(help="Only relations of this kind, such as depends_on.")] = None,
    server: ContextServer = "",
    token: ContextToken = "",
    json: Json = False,
) -> None:
    """Show what is related to a story, a task, a decision, an execution, a commit or a file."""

    async def work(screen: Screen, context: Calls) -> Exit:
        kinds = [enum_name(pb.RelationKind, one, field="kind") for one in kind or ()]
        request = pb.GetGraphRelationshipsRequest(node=node, depth=depth, kinds=kinds, page_size=1_000)
        found: list[pb.Relation] = []
        while True:
            answer = await context.one("GetGraphRelationships", request, pb.GetGraphRelationshipsResponse)
            found.extend(answer.relations)
            if not answer.next_page_token:
                break
            request.page_token = answer.next_page_token
        if screen.json:
            listed = [document(relation) for relation in found]
            screen.document({"relations": listed, "truncated": answer.truncated, "version": answer.version})
            return Exit.ACCEPTED
        words = [enum_word(pb.RelationKind, one.kind).replace("_", " ") for one in found]
        _lines(screen, [f"{one.source} {word} {one.target}" for one, word in zip(found, words, strict=True)])
        if answer.truncated:
            screen.note("there is more; look around another node, or less far")
        return Exit.ACCEPTED

    carry_out_with(context_client, work, server=server, token=token, json=json)


context_app.command()(change)


def _lines(screen: Screen, lines: Sequence[str], *, nothing: str = "nothing is known") -> None:
    if not lines:
        screen.note(nothing)
    for line in lines:
        screen.line(line)


def _phase(value: pb.Phase) -> str:
    return enum_word(pb.Phase, value)

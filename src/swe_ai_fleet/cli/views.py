"""What single rows of the table need beside their fields: requests completed, replies judged and shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from fleet.context.v1 import context_pb2 as pb_context
from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.client import connect, is_execution_id
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.messages import document, enum_word
from swe_ai_fleet.cli.options import option
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.cli.tables import plain_table, print_rows
from swe_ai_fleet.domain.outcome import BEST_RATING
from swe_ai_fleet.domain.review import VERIFIER_PROFILE
from swe_ai_fleet.learning.recommending import DEFAULT
from swe_ai_fleet.runtime.channels import find_place
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.watching.events import moment
from swe_ai_fleet.watching.text import command_line, one_line

Given = Mapping[str, Any]
_CHOICES = ("approach", "council", "model_profile", "agents")


def succeeded(field: str) -> Callable[[Any, Any], Exit]:
    """The end of a command whose reply says whether anything was done; else this field is at fault."""

    def ends(answer: Any, _: Any) -> Exit:
        if not answer.success:
            raise CommandFault(answer.message, exit_code=Exit.USAGE, field=field)
        return Exit.ACCEPTED

    return ends


# Executions

EXECUTION_COLUMNS: Mapping[str, str | Callable[[Any], str]] = {
    "execution": "execution_id",
    "task": "task_id",
    "kind": "kind",
    "status": "status",
    "verdict": "verdict",
    "role": lambda one: enum_word(pb.Role, one.role).upper(),
    "started (UTC)": lambda one: moment(one.created_at_ms)[:19],
    "what": lambda one: one_line(one.task_description, 60),
}


async def with_a_text(_: Settings, request: pb.ResolveApprovalRequest, given: Given) -> None:
    """An adjustment says what is to be done otherwise. Raises CommandFault."""
    if request.decision == pb.APPROVAL_DECISION_ADJUSTED and not given["text"].strip():
        raise CommandFault("it is empty", exit_code=Exit.USAGE, field="text", hint="say what is to be done otherwise")


# Outcomes

FLEET_OF_A_TASK: Given = {
    "fleet": Annotated[
        str,
        option(
            "A fleet that knows the task, not this home's.", words="--fleet", envvar="FLEET_SERVER", metavar="HOST:PORT"
        ),
    ],
    "fleet_token": Annotated[str, option("", words="--fleet-token", envvar="FLEET_TOKEN", hidden=True)],
}


async def with_subject(settings: Settings, request: pb_context.RecordOutcomeRequest, given: Given) -> None:
    """What is rated: the newest execution of a task, or the name itself where no fleet knows a task by it."""
    name = given["name"]
    if is_execution_id(name):
        return
    place = find_place(settings, server=given["fleet"], token=given["fleet_token"])
    if place is not None:
        async with connect(place.address, place.token, tls=place.tls) as client:
            found = await client.executions(pb.ListExecutionsRequest(task_id=name, page_size=1))
        # A plan session has one outcome, whatever its goals were.
        if found.executions and found.executions[0].kind != pb.EXECUTION_KIND_PLAN:
            request.rating.subject_id = found.executions[0].execution_id


def show_rating(screen: Screen, answer: pb_context.RecordOutcomeResponse, request: Any) -> None:
    outcome = answer.outcome
    screen.line(f"execution {request.rating.subject_id}: {one_line(outcome.goal, 120)}")
    screen.line(f"rated {outcome.rating} of {BEST_RATING}", style="bold")
    if outcome.comment:
        screen.line(f"because: {one_line(outcome.comment, 400)}")


async def with_profiles(settings: Settings, request: pb_context.RecommendApproachRequest, _: Given) -> None:
    """Without any profiles those of the settings are weighed."""
    if not request.model_profiles:
        request.model_profiles.extend(sorted(settings.model_profiles.keys() - {VERIFIER_PROFILE}))


def show_recommendation(screen: Screen, answer: pb_context.RecommendApproachResponse, _: Any) -> None:
    known = f"{answer.outcomes} outcomes are known" if answer.outcomes != 1 else "1 outcome is known"
    screen.line(f"goal type {answer.goal_type}; {known}", style="bold")
    for choice in _CHOICES:
        advice: pb_context.Advice = getattr(answer, choice)
        screen.line(f"{choice.replace('_', ' ')}: {one_line(advice.value)}", style="bold")
        screen.line(f"  {one_line(advice.reason)}")
        for one in advice.options:
            screen.line(
                f"  {one_line(one.value)}: {one.expected:.2f} ({one.low:.2f} to {one.high:.2f}), "
                f"tried {one.tried:.3g}, the best with a chance of {one.best:.0%}"
            )
    # What is the default anyway, and what has no option, is left out.
    kind, _sign, mode = answer.approach.value.partition("/")
    profile, agents = answer.model_profile.value, answer.agents.value
    flags = [
        "--deliberate-only" if kind == "deliberate" else "",
        f"--mode {command_line([mode])}" if mode and kind in ("deliberate", "orchestrate") else "",
        f"--profile {command_line([profile])}" if profile not in ("", DEFAULT) else "",
        f"--agents {agents}" if agents.isdecimal() else "",
    ]
    if any(flags):
        screen.note(f"to follow it: fleet run {' '.join(filter(None, flags))} ...")


# Councils


async def with_reviews(_: Settings, request: pb.CreateCouncilRequest, given: Given) -> None:
    request.config.enable_peer_review = given["rounds"] != 0


def show_councils(screen: Screen, answer: pb.ListCouncilsResponse, _: Any) -> None:
    if not answer.councils:
        screen.note("no councils; agents are made for each task")
        return
    councils = [(one.council_id, one.role, str(one.num_agents), one.status, one.model) for one in answer.councils]
    screen.out.print(plain_table(("council", "role", "agents", "status", "model"), councils))
    members = [_member(council, agent) for council in answer.councils for agent in council.agents]
    screen.out.print(plain_table(("agent", "role", "run by", "profile", "tasks", "languages"), members))


def _member(council: pb.CouncilInfo, agent: pb.AgentInfo) -> tuple[str, ...]:
    can = agent.capabilities
    tasks = f"{agent.running_tasks} of {can.max_concurrent_tasks}" if agent.endpoint else str(agent.running_tasks)
    return (
        agent.agent_id,
        council.role,
        agent.endpoint or "the fleet",
        can.model_profile,
        tasks,
        ", ".join(can.languages),
    )


# Stories and memories


def stories_document(answer: pb_context.ListStoriesResponse) -> dict[str, object]:
    return {"stories": [document(one) for one in answer.stories], "more": bool(answer.next_page_token)}


def show_stories(screen: Screen, answer: pb_context.ListStoriesResponse, request: Any) -> None:
    rows = [
        (
            one.story_id,
            one.title,
            enum_word(pb_context.Phase, one.phase),
            one.case_id,
            f"{one.open_task_count} of {one.task_count} open" if one.task_count else "none",
            str(one.decision_count),
            moment(one.changed_at_ms)[:19],
        )
        for one in answer.stories
    ]
    nothing = "there is no such story" if request.case_id or request.phases else "there is no story yet"
    print_rows(screen, ("story", "title", "phase", "case", "tasks", "decisions", "changed (UTC)"), rows, nothing)
    if answer.next_page_token:
        screen.note("there are more; --limit shows them")


def show_context(screen: Screen, answer: pb_context.GetContextResponse, request: Any) -> None:
    named = request.story_id or request.case_id or request.task_id
    nothing = "nothing is known" if named else "nothing holds for the whole project; name a STORY"
    print_lines(screen, answer.context_text.splitlines(), nothing=nothing)
    if answer.context_text:
        at = f", the story at version {answer.version}" if answer.version else ""
        left_out = f", not in it: {', '.join(answer.omitted)}" if answer.omitted else ""
        screen.note(f"about {answer.token_count} tokens, content {answer.version_hash[:12]}{at}{left_out}")


def show_relations(screen: Screen, answer: pb_context.GetGraphRelationshipsResponse, _: Any) -> None:
    words = [enum_word(pb_context.RelationKind, one.kind).replace("_", " ") for one in answer.relations]
    related = zip(answer.relations, words, strict=True)
    print_lines(screen, [f"{one.source} {word} {one.target}" for one, word in related], nothing="nothing is known")
    if answer.truncated:
        screen.note("there is more; look around another node, or less far")


async def with_first(_: Settings, request: pb_context.UpdateContextRequest, given: Given) -> None:
    if given["first"] and given["after"]:
        raise CommandFault("--first with --after", exit_code=Exit.USAGE, field="after", hint="one of the two")
    if given["first"]:
        request.depends_on.SetInParent()


def changed(told: Given) -> str:
    """What was changed: a decision, a task or a story."""
    if "decision" in told:
        what = f"decision {told['decision']['decision_id']} is {told['decision']['state']}"
    elif "task" in told:
        what = f"task {told['task']['task_id']} is {told['task']['state'].replace('_', ' ')}"
    else:
        what = f"story {told['story']['story_id']} is changed"
    return f"{what} (version {told['version']})"


def show_recollections(screen: Screen, answer: pb_context.RecallResponse, _: Any) -> None:
    if not answer.recollections:
        screen.note("nothing that fits is remembered")
    for found in answer.recollections:
        memory = found.memory
        screen.line(f"{found.score:.2f}  " + memory.text.replace("\n", "\n      "))
        screen.line(f"      {memory.namespace}, from {memory.source or 'nobody'}, {memory.memory_id}", style="dim")


def print_lines(screen: Screen, lines: Sequence[str], *, nothing: str) -> None:
    if not lines:
        screen.note(nothing)
    for line in lines:
        screen.line(line)

"""The commands about stories, memories and outcomes that make one request: a row each, by the words after `fleet`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fleet.context.v1 import context_pb2 as pb_context
from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.client import connect, is_execution_id
from swe_ai_fleet.cli.command import Given, TableRow
from swe_ai_fleet.cli.messages import document, enum_word, local_time
from swe_ai_fleet.cli.options import PHASES, ROLES, argument, option
from swe_ai_fleet.cli.order import named_repository
from swe_ai_fleet.cli.screen import CommandFault, Screen
from swe_ai_fleet.client_settings import ClientSettings
from swe_ai_fleet.domain.memory import BEST_RATING, LEAST_RATING
from swe_ai_fleet.domain.review import VERIFIER_PROFILE
from swe_ai_fleet.domain.text import counted
from swe_ai_fleet.runtime.channels import find_fleet
from swe_ai_fleet.watching.text import command_line, one_line

_CONTEXT = "fleet.context.v1.ContextService"
_STORY = argument("The story's id.", "story_id", "story.story_id", "task.story_id", metavar="STORY")
_TITLE = argument("A title of one line.", "story.title", "task.title", "decision.title")
_WANTED = "The goal and its reason."
_CRITERION = "An acceptance criterion"
_EXPECT = option("Only if the story has this version.", "expected_version", words="--expect", metavar="N", min=0)
_MEMORIES = {
    "namespace": option(
        "fleet, agent:<id> or repository:<name>; may be repeated.",
        "namespaces",
        words="--namespace -n",
        metavar="NAME",
    ),
    "kind": option("fact, interaction or outcome; may be repeated.", "kinds", words="--kind"),
    "metadata": option("A property of the memory.", words="--metadata", metavar="K=V"),
}
_FEW = 10
_CHOICES = ("approach", "council", "model_profile", "agents")
FLEET_OF_A_TASK: Given = {
    "fleet": Annotated[
        str,
        option(
            "A fleet with the task, other than this home's.",
            words="--fleet",
            envvar="FLEET_SERVER",
            metavar="HOST:PORT",
        ),
    ],
    "fleet_token": Annotated[str, option("", words="--fleet-token", envvar="FLEET_TOKEN", hidden=True)],
}


async def with_subject(settings: ClientSettings, request: pb_context.RecordOutcomeRequest, given: Given) -> None:
    """Rate the newest execution of a task, or the name itself if no fleet knows a task with it."""
    name = given["name"]
    if is_execution_id(name):
        return
    place = find_fleet(settings, server=given["fleet"], token=given["fleet_token"])
    if place is not None:
        async with connect(place.address, place.token, tls=place.tls) as client:
            executions = await client.executions(pb.ListExecutionsRequest(task_id=name, page_size=1))
        # A plan session has one outcome for all its goals.
        if executions.executions and executions.executions[0].kind != pb.EXECUTION_KIND_PLAN:
            request.rating.subject_id = executions.executions[0].execution_id


def show_rating(screen: Screen, answer: pb_context.RecordOutcomeResponse, request: Any) -> None:
    outcome = answer.outcome
    screen.line(f"execution {request.rating.subject_id}: {one_line(outcome.goal, 120)}")
    screen.line(f"rated {outcome.rating} of {BEST_RATING}", style="bold")
    if outcome.comment:
        screen.line(f"because: {one_line(outcome.comment, 400)}")


async def with_profiles(_: ClientSettings, request: pb_context.RecommendApproachRequest, given: Given) -> None:
    """Without profiles, those of the settings are weighed."""
    if not request.model_profiles:
        from swe_ai_fleet.settings import Settings

        request.model_profiles.extend(sorted(Settings().model_profiles.keys() - {VERIFIER_PROFILE}))


def show_recommendation(screen: Screen, answer: pb_context.RecommendApproachResponse, _: Any) -> None:
    # Imported here: it imports the events.
    from swe_ai_fleet.extensions.knowledge.recommending import DEFAULT, TRIAL

    few = ", too few to be sure" if answer.outcomes < _FEW else ""
    screen.line(f"goal type {answer.goal_type}; known: {counted(answer.outcomes, 'outcome')}{few}", style="bold")
    for choice in _CHOICES:
        advice: pb_context.Advice = getattr(answer, choice)
        screen.line(f"{choice.replace('_', ' ')}: {one_line(advice.value)}", style="bold")
        screen.line(f"  {one_line(advice.reason)}")
        for weighed in advice.options:
            screen.line(
                f"  {one_line(weighed.value)}: {weighed.expected:.2f} ({weighed.low:.2f} to {weighed.high:.2f}), "
                f"tried {weighed.tried:.3g}, {weighed.best:.0%} likely best"
            )
    # Defaults, and choices without an option, are left out.
    kind, _sign, mode = answer.approach.value.partition("/")
    profile, agents = answer.model_profile.value, answer.agents.value
    flags = [
        "--deliberate-only" if kind == "deliberate" else "",
        f"--mode {command_line([mode])}" if mode and kind in ("deliberate", "orchestrate") else "",
        f"--profile {command_line([profile])}" if profile not in ("", DEFAULT) else "",
        f"--agents {agents}" if agents.isdecimal() else "",
    ]
    if any(flags):
        word = "try" if answer.agents.reason.startswith(TRIAL) else "follow"
        screen.note(f"to {word} it: fleet run {' '.join(filter(None, flags))} ...")


def show_stories(screen: Screen, answer: pb_context.ListStoriesResponse, request: Any) -> None:
    rows = [
        (
            story.story_id,
            story.title,
            enum_word(pb_context.Phase, story.phase),
            story.case_id,
            f"{story.open_task_count} of {story.task_count} open" if story.task_count else "none",
            str(story.decision_count),
            local_time(story.changed_at_ms),
        )
        for story in answer.stories
    ]
    nothing = "no story matches; clear the filters" if request.case_id or request.phases else "no stories yet"
    screen.table(("story", "title", "phase", "case", "tasks", "decisions", "changed"), rows, nothing)
    if answer.next_page_token:
        screen.note("more exist; raise --limit")


def show_context(screen: Screen, answer: pb_context.GetContextResponse, request: Any) -> None:
    named = request.story_id or request.case_id or request.task_id
    nothing = "nothing is known" if named else "nothing holds for the whole project; name a STORY"
    screen.lines(answer.context_text.splitlines(), nothing=nothing)
    if answer.context_text:
        at = f", the story at version {answer.version}" if answer.version else ""
        left_out = f", not in it: {', '.join(answer.omitted)}" if answer.omitted else ""
        screen.note(f"about {answer.token_count} tokens, content {answer.version_hash[:12]}{at}{left_out}")


def show_relations(screen: Screen, answer: pb_context.GetGraphRelationshipsResponse, _: Any) -> None:
    words = [enum_word(pb_context.RelationKind, relation.kind).replace("_", " ") for relation in answer.relations]
    related = zip(answer.relations, words, strict=True)
    screen.lines(
        [f"{relation.source} {word} {relation.target}" for relation, word in related], nothing="nothing is known"
    )
    if answer.truncated:
        screen.note("there is more; look around another node, or less far")


async def with_first(_: ClientSettings, request: pb_context.UpdateContextRequest, given: Given) -> None:
    if given["first"] and given["after"]:
        raise CommandFault("--first with --after", field="after", hint="one of the two")
    if given["first"]:
        request.depends_on.SetInParent()


def changed(answer: Given) -> str:
    """A line about the changed decision, task or story."""
    if "decision" in answer:
        subject = f"decision {answer['decision']['decision_id']} is {answer['decision']['state']}"
    elif "task" in answer:
        subject = f"task {answer['task']['task_id']} is {answer['task']['state'].replace('_', ' ')}"
    else:
        subject = f"story {answer['story']['story_id']} is changed"
    return f"{subject} (version {answer['version']})"


def show_recollections(screen: Screen, answer: pb_context.RecallResponse, _: Any) -> None:
    if not answer.recollections:
        screen.note("nothing that fits is remembered")
    for recollection in answer.recollections:
        memory = recollection.memory
        screen.line(f"{recollection.score:.2f}  " + memory.text.replace("\n", "\n      "))
        screen.line(f"      {memory.namespace}, from {memory.source or 'nobody'}, {memory.memory_id}", style="dim")


ROWS: Mapping[str, TableRow] = {
    "rate": TableRow(
        rpc=f"{_CONTEXT}.RecordOutcome",
        takes={
            "name": argument("An execution id, a task id, or a plan session's id.", "rating.subject_id", metavar="ID"),
            "rating": argument("From 1 (useless) to 5.", "rating.rating", min=LEAST_RATING, max=BEST_RATING),
            "comment": option(
                "The reason, shown with the rating. Default: keep the earlier one.", "rating.comment", metavar="TEXT"
            ),
            **FLEET_OF_A_TASK,
        },
        before=with_subject,
        json=lambda answer: document(answer.outcome),
        view=show_rating,
    ),
    "recommend": TableRow(
        rpc=f"{_CONTEXT}.RecommendApproach",
        takes={
            "goal": argument("The task, in your own words."),
            "repo": option(
                "The repository; its own outcomes count more.", "repository", metavar="PATH|URL", turn=named_repository
            ),
            "role": option(f"{ROLES}."),
            "profile": option("A model profile to compare; may be repeated.", "model_profiles"),
            "agents": option("A number of agents to compare; may be repeated."),
        },
        before=with_profiles,
        view=show_recommendation,
    ),
    "context stories": TableRow(
        rpc=f"{_CONTEXT}.ListStories",
        takes={
            "case": option("Only stories of this case.", "case_id", metavar="ID"),
            "phase": option(f"Only stories in this phase: {PHASES}. May be repeated.", "phases"),
            "limit": option("Most stories to show.", "page_size", min=1, default=50),
        },
        pages="stories",
        json=lambda answer: {
            "stories": [document(story) for story in answer.stories],
            "more": bool(answer.next_page_token),
        },
        view=show_stories,
    ),
    "context story": TableRow(
        rpc=f"{_CONTEXT}.CreateStory",
        takes={
            "story_id": _STORY,
            "title": _TITLE,
            "description": option(_WANTED, "story.description"),
            "criterion": option(f"{_CRITERION}.", "story.acceptance_criteria"),
            "case": option("The larger project that it belongs to.", "story.case_id", metavar="ID"),
            "phase": option(f"{PHASES}. Default: plan.", "story.phase"),
        },
        line="story {story[story_id]} is in phase {story[phase]} (version {version})",
    ),
    "context task": TableRow(
        rpc=f"{_CONTEXT}.CreateTask",
        takes={
            "story_id": _STORY,
            "task_id": argument("The task's id.", "task.task_id", metavar="TASK"),
            "title": _TITLE,
            "description": option("The task in more words.", "task.description"),
            "role": option(f"{ROLES}. Default: any role.", "task.role"),
            "after": option("A task of the story that must be done first.", "task.depends_on", metavar="TASK"),
            "expect": _EXPECT,
        },
        line="task {task[task_id]} is in story {task[story_id]} (version {version})",
    ),
    "context decide": TableRow(
        rpc=f"{_CONTEXT}.AddProjectDecision",
        takes={
            "decision_id": argument("The decision's id.", "decision.decision_id", metavar="DECISION"),
            "title": _TITLE,
            "story": option(
                "The story that it applies to. Default: the whole project.", "decision.story_id", metavar="ID"
            ),
            "why": option("The reason.", "decision.rationale"),
            "instead_of": option("A rejected alternative.", "decision.alternatives", metavar="TEXT"),
            "supersedes": option("The decision that it replaces.", "decision.supersedes", metavar="DECISION"),
            "role": option(f"A role that it concerns: {ROLES}. Default: all.", "decision.roles"),
            "affects": option("A task that it affects.", "decision.task_ids", metavar="TASK"),
            "proposed": option(
                "Only propose it; it is not in force yet.",
                "decision.state",
                kind=bool,
                turn=lambda proposed: "proposed" if proposed else "accepted",
            ),
            "expect": _EXPECT,
        },
        line="decision {decision[decision_id]} is {decision[state]} (version {version})",
    ),
    "context phase": TableRow(
        rpc=f"{_CONTEXT}.TransitionPhase",
        takes={
            "story_id": _STORY,
            "phase": argument(f"{PHASES}.", metavar="PHASE"),
            "reason": option("The reason; required to move back."),
            "expect": _EXPECT,
        },
        line="story {story[story_id]}: {previous} -> {story[phase]} (version {version})",
    ),
    "context show": TableRow(
        rpc=f"{_CONTEXT}.GetContext",
        takes={
            "story_id": argument("The story's id.", metavar="[STORY]", default=""),
            "case": option("All stories of a case.", "case_id", metavar="ID"),
            "task": option("Only this task.", "task_id", metavar="ID"),
            "role": option(f"The context of this role: {ROLES}."),
            "phase": option(f"The context of this phase: {PHASES}. Default: the story's."),
            "query": option("The purpose; the most relevant parts come first."),
            "tokens": option("Most tokens. Default: the server's.", "token_budget", min=0),
            "namespace": option(
                "Memories to recall: fleet, agent:…, repository:….",
                "namespaces",
                words="--namespace -n",
                metavar="NAME",
            ),
        },
        view=show_context,
    ),
    "context relations": TableRow(
        rpc=f"{_CONTEXT}.GetGraphRelationships",
        takes={
            "node": argument("<kind>:<id>; kinds are case, story, task, decision, execution, commit, file."),
            "depth": option("Maximum distance, in relations.", min=1, max=5, default=1),
            "kind": option("Only relations of this kind, such as depends_on.", "kinds"),
        },
        pages="relations",
        json="relations truncated version",
        view=show_relations,
    ),
    "context change": TableRow(
        rpc=f"{_CONTEXT}.UpdateContext",
        takes={
            "story_id": argument(
                "The story's id; without one, a decision of the whole project.", metavar="[STORY]", default=""
            ),
            "task": option("A task of the story to change.", "task_id", metavar="ID"),
            "decision": option("A decision to change.", "decision_id", metavar="ID"),
            "accept": option(
                "Put the proposed decision in force.",
                "decision_state",
                kind=bool,
                turn=lambda accept: "accepted" if accept else "",
            ),
            "title": option("A title of one line."),
            "description": option(_WANTED),
            "criterion": option(f"{_CRITERION}; replaces all.", "acceptance_criteria.values"),
            "note": option("A note; an empty one is removed.", "notes", metavar="K=V"),
            "state": option("The state of a task: open, in_progress, done or dropped."),
            "role": option(
                "The role of a task: DEV, QA, ARCHITECT, DEVOPS, DATA, or anybody for any role.",
                turn=lambda role: "" if role and role.strip().lower() == "anybody" else role or None,
            ),
            "after": option("A task that must be done first; replaces all.", "depends_on.values", metavar="TASK"),
            "first": option("No other task must be done first.", kind=bool),
            "expect": _EXPECT,
        },
        before=with_first,
        line=changed,
    ),
    "memory add": TableRow(
        rpc=f"{_CONTEXT}.AddFact",
        takes={
            "text": argument("The fact."),
            "namespace": option(
                "fleet, agent:<id> or repository:<name>.", words="--namespace -n", metavar="NAME", default="fleet"
            ),
            "metadata": _MEMORIES["metadata"],
        },
        line=lambda answer: f"{'known already' if answer['already_existed'] else 'remembered'}: {answer['memory_id']}",
    ),
    "memory recall": TableRow(
        rpc=f"{_CONTEXT}.Recall",
        takes={
            "query": argument("The question, in words."),
            **_MEMORIES,
            "limit": option("Most memories to show.", min=1, max=100, default=10),
        },
        view=show_recollections,
    ),
    "memory clear": TableRow(
        rpc=f"{_CONTEXT}.ClearMemory",
        takes={
            "memory_ids": argument("Only memories with these ids.", metavar="[ID]...", default=()),
            **_MEMORIES,
            "everywhere": option("In all namespaces."),
        },
        line="forgotten: {removed}",
    ),
}

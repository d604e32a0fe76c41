"""Every command that is one request: a row each, by the words behind `fleet`."""

from __future__ import annotations

from collections.abc import Mapping

from swe_ai_fleet.cli import views
from swe_ai_fleet.cli.client import SUBMIT_SECONDS
from swe_ai_fleet.cli.command import Row, table
from swe_ai_fleet.cli.exits import Exit
from swe_ai_fleet.cli.fleet_views import show_metrics, show_status, since_ms
from swe_ai_fleet.cli.messages import listed_document
from swe_ai_fleet.cli.options import PHASES, ROLES, As, Execution, Profiles, argument, option
from swe_ai_fleet.cli.order import named_repository
from swe_ai_fleet.cli.plan import LIMITS, WORK_SECONDS, decided, show_decision, show_result, show_session
from swe_ai_fleet.domain.outcome import BEST_RATING, LEAST_RATING
from swe_ai_fleet.watching.text import one_line

_FLEET = "fleet.orchestrator.v1.OrchestratorService"
_CONTEXT = "fleet.context.v1.ContextService"
_PLANNING = "fleet.planning.v1.PlanningService"

_ROLE = argument(f"{ROLES}.")
_AGENT = argument("The agent's id.", metavar="AGENT")
_STORY = argument("The story's id.", "story_id", "story.story_id", "task.story_id", metavar="STORY")
_TITLE = argument("In a line.", "story.title", "task.title", "decision.title")
_WANTED = "What is wanted, and why."
_CRITERION = "What has to hold for it to be done"
_EXPECT = option("Only if the story stands at this version.", "expected_version", words="--expect", metavar="N", min=0)
_MEMORIES = {
    "namespace": option(
        "fleet, agent:<id> or repository:<name>; may be repeated.",
        "namespaces",
        words="--namespace -n",
        metavar="NAME",
    ),
    "kind": option("fact, interaction or outcome; may be repeated.", "kinds", words="--kind"),
    "metadata": option("What it is about.", words="--metadata", metavar="K=V"),
}
_SESSION = argument("A plan session.", "session_id", metavar="ID")


def _resolving(decision: str, about: str, field: str = "comment") -> Row:
    """The command that answers an approval in this way."""
    return Row(
        rpc=f"{_FLEET}.ResolveApproval",
        about=about,
        takes={
            "execution": Execution,
            "approval": option("Which one, where several wait.", "approval_id", metavar="APPROVAL"),
            "text": option("What to tell the agent.", field),
            "approver": As,
        },
        fixed={"decision": decision},
        before=views.with_a_text,
        json="execution_id status pending_approvals",
        line=lambda told: (
            f"execution {told['execution_id']}: {decision}; {told['status']}"
            + (f"; {told['pending_approvals']} more wait" if told["pending_approvals"] else "")
        ),
    )


def _deciding(decision: str, about: str, **text: object) -> Row:
    """The command that answers a plan session in this way."""
    return Row(
        rpc=f"{_PLANNING}.ApproveApproach",
        about=about,
        takes={"name": _SESSION, **text},
        fixed={"decision": decision},
        ends=decided,
        view=show_decision,
        seconds=WORK_SECONDS,
    )


ROWS: Mapping[str, Row] = {
    "status": Row(
        rpc=f"{_FLEET}.GetStatus",
        about="Show hosts, machines, model servers and the queue as they are now; exit code 1 where something is down.",
        fixed={"include_stats": True, "include_fleet": True},
        ends=lambda reply, _: Exit.NOT_ACCEPTED if reply.status == "unhealthy" else Exit.ACCEPTED,
        view=show_status,
        seconds=20.0,
    ),
    "metrics": Row(
        rpc=f"{_FLEET}.GetMetrics",
        about="Show how long executions, agents, model and tool calls took, and what was spent.",
        takes={
            "since": option(
                "How far back: 90s, 30m, 1h, 7d, 2w. Empty: as far as it goes.",
                "start_time_ms",
                metavar="SPAN",
                kind=str,
                default="1h",
                turn=since_ms,
            ),
            "role": option("Only executions of this role. Default: all."),
        },
        view=show_metrics,
    ),
    "deliver": Row(
        rpc=f"{_FLEET}.DeliverCandidate",
        about="Put a candidate of an ended execution on a branch, whatever its verdict; the log keeps who decided it.",
        takes={
            "execution": Execution,
            "candidate": argument("As `fleet show` names it.", "candidate_id", metavar="CANDIDATE"),
            "branch": option("The branch to create. Default: fleet/<task id>-<candidate>."),
            "push": option("Push it to where the repository came from."),
            "reason": option("Why, for the log.", metavar="TEXT"),
            "approver": As,
        },
        json="execution_id candidate_id branch commit=commit_sha",
        line="{candidate_id} stands on branch {branch} as {commit_sha}",
        seconds=SUBMIT_SECONDS,
    ),
    "rate": Row(
        rpc=f"{_CONTEXT}.RecordOutcome",
        about="Say how good the outcome of an execution was; recommendations learn from it.",
        takes={
            "name": argument("An execution id, a task id, or a plan session's id.", "rating.subject_id", metavar="ID"),
            "rating": argument("From 1 (useless) to 5.", "rating.rating", min=LEAST_RATING, max=BEST_RATING),
            "comment": option(
                "Why; shown with the rating. Left out: the earlier one stands.", "rating.comment", metavar="TEXT"
            ),
            **views.FLEET_OF_A_TASK,
        },
        before=views.with_subject,
        json=lambda answer: views.document(answer.outcome),
        view=views.show_rating,
    ),
    "recommend": Row(
        rpc=f"{_CONTEXT}.RecommendApproach",
        about="Say what experience suggests for a task, and how sure that is. Nothing is started or changed.",
        takes={
            "goal": argument("What is to be done, in your own words."),
            "repo": option(
                "Where: outcomes there count more.", "repository", metavar="PATH|URL", turn=named_repository
            ),
            "role": option(f"{ROLES}."),
            "profile": option("A model profile to weigh; may be repeated.", "model_profiles"),
            "agents": option("A number of agents to weigh; may be repeated."),
        },
        before=views.with_profiles,
        view=views.show_recommendation,
    ),
    "list": Row(
        rpc=f"{_FLEET}.ListExecutions",
        about="List executions, the newest first.",
        takes={
            "task_id": option("Only this task's."),
            "status": option("Only those with this status; may be repeated.", "statuses"),
            "limit": option("At most so many, the newest.", "page_size", max=500, min=1, default=50),
        },
        json=lambda answer: {"executions": [listed_document(one) for one in answer.executions]},
        view=table("executions", views.EXECUTION_COLUMNS, "no executions"),
    ),
    "cancel": Row(
        rpc=f"{_FLEET}.CancelExecution",
        about="Stop an execution's agents and their processes.",
        takes={
            "execution": Execution,
            "reason": option("Why, for the log.", default="cancelled from the command line"),
        },
        json="execution_id status already_ended",
        line=lambda told: (
            f"execution {told['execution_id']}{' had ended before' if told['already_ended'] else ''}: {told['status']}"
        ),
    ),
    "approve": _resolving("approved", "Let an agent do what it asked for."),
    "reject": _resolving("rejected", "Refuse what an agent asked for; a refused plan ends its run."),
    "adjust": _resolving("adjusted", "Have an agent propose again, with --text taken into account.", "adjustment"),
    "councils list": Row(
        rpc=f"{_FLEET}.ListCouncils",
        about="Show councils and their agents.",
        takes={"role": option("Only this role's. Default: all.", "role_filter")},
        fixed={"include_agents": True},
        view=views.show_councils,
    ),
    "councils create": Row(
        rpc=f"{_FLEET}.CreateCouncil",
        about="Create a role's council.",
        takes={
            "role": _ROLE,
            "agents": option("How many agents of the fleet's own. Default: 3.", "num_agents", min=0),
            "rounds": option(
                "Rounds of peer review. Default: 1.", "config.deliberation_rounds", min=0, kind=int | None
            ),
            "profile": Profiles,
            "kind": option(
                "tools (own agents only), or external. Default: either.",
                "config.agent_type",
                words="--type",
                metavar="TYPE",
            ),
            "param": option(
                "temperature=0.2, or instructions=… for every agent.", "config.custom_params", metavar="K=V"
            ),
        },
        before=views.with_reviews,
        json="council_id agent_ids",
        line=lambda told: (
            f"{told['council_id']} is created: {', '.join(told['agent_ids']) or 'no agents yet; register them'}"
        ),
    ),
    "councils delete": Row(
        rpc=f"{_FLEET}.DeleteCouncil",
        about="Delete a role's council; agents are made for each of its tasks from then on.",
        takes={"role": _ROLE},
        ends=views.succeeded("role"),
        json="message agents_removed",
        line="{message}",
    ),
    "councils register": Row(
        rpc=f"{_FLEET}.RegisterAgent",
        about="Let an agent join a role's council.",
        takes={
            "role": _ROLE,
            "agent_id": _AGENT,
            "endpoint": option("Where an agent serves that you run. Default: the fleet runs it.", metavar="HOST:PORT"),
            "profile": option(
                "A model profile of the server. Default: its model.", "capabilities.model_profile", metavar="NAME"
            ),
            "max_tasks": option("Tasks at the same time. Default: 1.", "capabilities.max_concurrent_tasks", min=0),
            "language": option("A programming language that it knows.", "capabilities.languages"),
            "metadata": option("Something to say of it.", metavar="K=V"),
        },
        json="council_id message",
        line="{council_id}: {message}",
    ),
    "councils unregister": Row(
        rpc=f"{_FLEET}.UnregisterAgent",
        about="Let an agent leave a role's council.",
        takes={"role": _ROLE, "agent_id": _AGENT},
        ends=views.succeeded("agent_id"),
        json="message",
        line="{message}",
    ),
    "context stories": Row(
        rpc=f"{_CONTEXT}.ListStories",
        about="List the stories, the one that was changed last first.",
        takes={
            "case": option("Only those of this case.", "case_id", metavar="ID"),
            "phase": option(f"Only those in this phase: {PHASES}. May be given again.", "phases"),
            "limit": option("How many to show at most.", "page_size", min=1, default=50),
        },
        pages="stories",
        json=views.stories_document,
        view=views.show_stories,
    ),
    "context story": Row(
        rpc=f"{_CONTEXT}.CreateStory",
        about="Begin a story.",
        takes={
            "story_id": _STORY,
            "title": _TITLE,
            "description": option(_WANTED, "story.description"),
            "criterion": option(f"{_CRITERION}.", "story.acceptance_criteria"),
            "case": option("The larger undertaking that it belongs to.", "story.case_id", metavar="ID"),
            "phase": option(f"{PHASES}. Default: plan.", "story.phase"),
        },
        line="story {story[story_id]} is in phase {story[phase]} (version {version})",
    ),
    "context task": Row(
        rpc=f"{_CONTEXT}.CreateTask",
        about="Add a task to a story.",
        takes={
            "story_id": _STORY,
            "task_id": argument("The task's id.", "task.task_id", metavar="TASK"),
            "title": _TITLE,
            "description": option("What is to be done.", "task.description"),
            "role": option(f"{ROLES}. Default: anybody's.", "task.role"),
            "after": option("A task of the story that comes first.", "task.depends_on", metavar="TASK"),
            "expect": _EXPECT,
        },
        line="task {task[task_id]} is in story {task[story_id]} (version {version})",
    ),
    "context decide": Row(
        rpc=f"{_CONTEXT}.AddProjectDecision",
        about="Add a decision, and why it was made.",
        takes={
            "decision_id": argument("The decision's id.", "decision.decision_id", metavar="DECISION"),
            "title": _TITLE,
            "story": option("The story it is for. Default: the whole project.", "decision.story_id", metavar="ID"),
            "why": option("The reason.", "decision.rationale"),
            "instead_of": option("What was not chosen.", "decision.alternatives", metavar="TEXT"),
            "supersedes": option("The decision whose place it takes.", "decision.supersedes", metavar="DECISION"),
            "role": option(f"Whom it matters to: {ROLES}. Default: everybody.", "decision.roles"),
            "affects": option("A task that it affects.", "decision.task_ids", metavar="TASK"),
            "proposed": option(
                "It does not hold yet.",
                "decision.state",
                kind=bool,
                turn=lambda proposed: "proposed" if proposed else "accepted",
            ),
            "expect": _EXPECT,
        },
        line="decision {decision[decision_id]} is {decision[state]} (version {version})",
    ),
    "context phase": Row(
        rpc=f"{_CONTEXT}.TransitionPhase",
        about="Take a story to its next phase, or back to an earlier one.",
        takes={
            "story_id": _STORY,
            "phase": argument(PHASES, metavar="PHASE"),
            "reason": option("Why; needed on the way back."),
            "expect": _EXPECT,
        },
        line="story {story[story_id]}: {previous} -> {story[phase]} (version {version})",
    ),
    "context show": Row(
        rpc=f"{_CONTEXT}.GetContext",
        about="Show the context that agents get for a story; without one, what holds for the whole project.",
        takes={
            "story_id": argument("The story's id.", metavar="[STORY]", default=""),
            "case": option("All stories of a case.", "case_id", metavar="ID"),
            "task": option("One task.", "task_id", metavar="ID"),
            "role": option(f"As this role gets it: {ROLES}."),
            "phase": option(f"For this phase: {PHASES}. Default: the story's."),
            "query": option("What it is for; what is nearest to it goes first."),
            "tokens": option("The most it may take. Default: the server's.", "token_budget", min=0),
            "namespace": option(
                "Memories to recall: fleet, agent:…, repository:….",
                "namespaces",
                words="--namespace -n",
                metavar="NAME",
            ),
        },
        view=views.show_context,
    ),
    "context relations": Row(
        rpc=f"{_CONTEXT}.GetGraphRelationships",
        about="Show what is related to a story, a task, a decision, an execution, a commit or a file.",
        takes={
            "node": argument("<kind>:<id>, the kind one of case, story, task, decision, execution, commit, file."),
            "depth": option("How many relations away to go.", min=1, max=5, default=1),
            "kind": option("Only relations of this kind, such as depends_on.", "kinds"),
        },
        pages="relations",
        json="relations truncated version",
        view=views.show_relations,
    ),
    "context change": Row(
        rpc=f"{_CONTEXT}.UpdateContext",
        about="Change a story, a task or a decision; what is not named stays.",
        takes={
            "story_id": argument(
                "The story's id; without one, a decision of the whole project.", metavar="[STORY]", default=""
            ),
            "task": option("One of its tasks.", "task_id", metavar="ID"),
            "decision": option("One of its decisions.", "decision_id", metavar="ID"),
            "accept": option(
                "From now on the decision holds.",
                "decision_state",
                kind=bool,
                turn=lambda accept: "accepted" if accept else "",
            ),
            "title": option("In a line."),
            "description": option(_WANTED),
            "criterion": option(f"{_CRITERION}; all of them anew.", "acceptance_criteria.values"),
            "note": option("A note; an empty one is removed.", "notes", metavar="K=V"),
            "state": option("Of a task: open, in_progress, done or dropped."),
            "role": option(
                "Of a task: DEV, QA, ARCHITECT, DEVOPS, DATA, or anybody for everybody's.",
                turn=lambda role: "" if role and role.strip().lower() == "anybody" else role or None,
            ),
            "after": option(
                "A task that comes before this one; all of them anew.", "depends_on.values", metavar="TASK"
            ),
            "first": option("No task comes before this one.", kind=bool),
            "expect": _EXPECT,
        },
        before=views.with_first,
        line=views.changed,
    ),
    "memory add": Row(
        rpc=f"{_CONTEXT}.AddFact",
        about="Remember a fact.",
        takes={
            "text": argument("What to remember."),
            "namespace": option(
                "fleet, agent:<id> or repository:<name>.", words="--namespace -n", metavar="NAME", default="fleet"
            ),
            "metadata": _MEMORIES["metadata"],
        },
        line=lambda told: f"{'known already' if told['already_existed'] else 'remembered'}: {told['memory_id']}",
    ),
    "memory recall": Row(
        rpc=f"{_CONTEXT}.Recall",
        about="Show what fits a question, best first: how well, where it belongs, where it comes from, its id.",
        takes={
            "query": argument("What to look for, in words."),
            **_MEMORIES,
            "limit": option("At most so many.", min=1, max=100, default=10),
        },
        view=views.show_recollections,
    ),
    "memory clear": Row(
        rpc=f"{_CONTEXT}.ClearMemory",
        about="Forget memories for good.",
        takes={
            "memory_ids": argument("Only these.", metavar="[ID]...", default=()),
            **_MEMORIES,
            "everywhere": option("In all namespaces."),
        },
        line="forgotten: {removed}",
    ),
    "plan approve": _deciding("approved", "Approve the approach that waits; `fleet plan continue` carries it out."),
    "plan reject": _deciding(
        "rejected",
        "Reject the approach that waits; the session ends.",
        text=option("Why.", "adjustment", words="--text"),
    ),
    "plan adjust": _deciding(
        "adjusted",
        "Have another approach proposed.",
        text=option("What is to be different.", "adjustment", words="--text", default=...),
        **LIMITS,
    ),
    "plan continue": Row(
        rpc=f"{_PLANNING}.ContinuePlan",
        about="Carry out what was approved. Again shows the same result.",
        takes={"name": _SESSION, **LIMITS},
        ends=lambda result, _: Exit.ACCEPTED if result.status == "completed" else Exit.NOT_ACCEPTED,
        view=show_result,
        seconds=WORK_SECONDS,
    ),
    "plan show": Row(
        rpc=f"{_PLANNING}.GetPlanSession",
        about="Show a session as it stands.",
        takes={"name": _SESSION},
        json=lambda answer: views.document(answer.session),
        view=show_session,
    ),
    "plan list": Row(
        rpc=f"{_PLANNING}.ListPlanSessions",
        about="List the sessions that were worked on last.",
        takes={"limit": option("How many.", "page_size", min=1, max=200, default=20)},
        json="sessions",
        view=table(
            "sessions",
            {"session": "session_id", "status": "status", "goal": lambda one: one_line(one.goal, 80)},
            "no plan sessions yet",
        ),
    ),
}

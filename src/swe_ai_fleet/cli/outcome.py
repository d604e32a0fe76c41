"""Prints the outcome of an execution: verdict, winner, branch, diff, comparison, and the next commands.

For an execution that waits for approvals, prints its requests.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.client import FleetClient
from swe_ai_fleet.cli.executions import (
    VERDICT_STYLES,
    candidates_table,
    examination_table,
    execution_document,
    exit_of_state,
    node_row,
    nodes_table,
    print_outputs,
)
from swe_ai_fleet.cli.messages import enum_name, local_time
from swe_ai_fleet.cli.screen import CommandFault, Exit, Screen
from swe_ai_fleet.domain.approval import MemoryFindings
from swe_ai_fleet.domain.candidate import Verdict
from swe_ai_fleet.domain.context import GatheredContext
from swe_ai_fleet.domain.event import EXECUTION_SUBJECT, ExecutionStatus
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import ApprovalPolicy, TaskKind
from swe_ai_fleet.domain.text import counted, milliseconds
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.orchestrator.runs import expenses, side_runs
from swe_ai_fleet.watching.events import fold_events
from swe_ai_fleet.watching.narration import (
    BASELINE,
    CHECKLIST,
    EXAMINATION,
    baseline_text,
    checklist_text,
    gathered_text,
    how_to_answer,
)
from swe_ai_fleet.watching.text import command_line, one_line, visible

PAGE = "docs/stop-reasons.md"
ADVICE: Mapping[StopReason, str] = {
    StopReason.NO_TOOL_CALLS: "the model called no tool; `fleet doctor` shows whether its server offers tool calls",
    StopReason.MAX_ITERATIONS: "it took too many replies; split the task with --subtasks, or name its files",
    StopReason.MAX_TOOL_CALLS: "it made too many calls; split the task with --subtasks, or name its files",
    StopReason.MAX_TOKENS: "its tokens are used up; raise --max-tokens, or split the task with --subtasks",
    StopReason.MAX_COST: "its money is used up; raise --max-cost, or choose a cheaper model with --profile",
    StopReason.TIMEOUT: "its time is used up; raise --timeout",
    StopReason.CONTEXT_TOO_LONG: "the conversation does not fit the model; choose one with a longer context",
    StopReason.TOOL_ERROR: "its tool calls failed again and again; `fleet export ID --format markdown` shows them",
    StopReason.MODEL_ERROR: "the model server failed; `fleet doctor` says why",
    StopReason.MODEL_STOPPED: "the model refused, or its provider filtered the reply; put the task in other words",
    StopReason.MALFORMED_REPLIES: "the model's tool calls could not be read; choose a model that is made for tools",
    StopReason.LOOP: "it repeated itself; say more precisely what to do, or choose another model with --profile",
    StopReason.PLAN_FAILED: "its plan could not be read or run; try --mode agentic",
    StopReason.LOST: "its process died more often than it is restarted; the host may be short of memory",
}


_DIFF_LINES = 400
_MEMORY = 160
_MOST_REASONS = 3
_MOST_DECISIONS = 12
_MOST_CONFLICTS = 5
_REASON = 400
_STYLES = {Exit.ACCEPTED: "bold green", Exit.NOT_ACCEPTED: "bold red"}


def resolution(decision: str, *, approval_id: str, text: str, approver: str) -> pb.ResolveApprovalRequest:
    """The answer to an approval, without the execution's id. Raises CommandFault."""
    adjusted = decision == "adjusted"
    if adjusted and not text.strip():
        raise CommandFault("it is empty", field="text", hint="say what is to be done otherwise")
    return pb.ResolveApprovalRequest(
        decision=enum_name(pb.ApprovalDecision, decision, field="decision"),
        adjustment=text if adjusted else "",
        comment="" if adjusted else text,
        approver=approver,
        approval_id=approval_id,
    )


def print_pending(screen: Screen, state: ExecutionState) -> None:
    """Print the pending approvals of an execution, with everything needed to decide."""
    several = len(state.pending) > 1
    for request in state.pending:
        subject = "its plan" if request.policy is ApprovalPolicy.PLAN else request.call.name
        screen.line(f"{request.agent_id} asks for approval of {subject}", style="bold yellow")
        for title, text in (
            ("approach" if request.policy is ApprovalPolicy.PLAN else "call", request.approach),
            ("why it counts as risky", "\n".join(request.reasons)),
            ("what memory covers", _covered(request.memory_results)),
            ("found in memory", request.memory),
            ("changed so far", request.diff),
        ):
            # The approach is never cut: it is what a person approves.
            screen.block(title, text, most=sys.maxsize if text == request.approach else 60)
        if request.expires_at:
            screen.line(f"  expires {local_time(milliseconds(request.expires_at))}")
        screen.line(f"  answer with: {how_to_answer(state.execution_id, request.approval_id if several else '')}")


def _covered(findings: MemoryFindings | None) -> str:
    if findings is None:
        return ""
    lines = [f"{findings.coverage:.0f} % of what was asked"]
    lines += [f"not known: {gap}" for gap in findings.gaps]
    lines += [f"source: {source}" for source in findings.sources]
    return "\n".join(lines)


async def current_state(client: FleetClient, execution: pb.Execution) -> ExecutionState:
    """An execution's state at the current end of its log, whether it has ended or not."""
    state = await fold_events(client.recorded(execution))
    if state is None:
        raise CommandFault(f"execution {execution.execution_id} has no events", exit_code=Exit.NOT_ACCEPTED)
    return state


async def candidate_diff(client: FleetClient, state: ExecutionState, candidate_id: str) -> str:
    """A candidate's patch as text; empty without a patch, or for an unknown candidate."""
    candidate = state.candidates.get(candidate_id)
    if candidate is None or candidate.artifacts.patch is None or not candidate.artifacts.patch.size:
        return ""
    return (await client.artifact(state.execution_id, candidate.artifacts.patch.digest)).decode("utf-8", "replace")


async def show_outcome(screen: Screen, client: FleetClient, state: ExecutionState) -> Exit:
    """Print an execution's outcome; returns its exit code."""
    diff = await candidate_diff(client, state, state.winner_id)
    if screen.json:
        screen.document(execution_document(state, diff=diff) | {"next": list(next_commands(state))})
    else:
        print_outcome(screen, state, diff)
    return exit_of_state(state)


def print_outcome(screen: Screen, state: ExecutionState, diff: str) -> None:
    """Print the verdict and the agent's own summary, then branch, size of the diff, tables, and the diff.

    The end is the status, and the next commands.
    """
    if state.task.kind is TaskKind.JUDGE:
        _print_judgement(screen, state)
        return
    won = bool(state.winner_id) or state.delivered is not None
    verdict = _print_verdict(screen, state) if won or state.status.terminal else ""
    if state.status.terminal and not won:
        _print_advice(screen, state)
    if (delivered := state.delivered) is not None:
        screen.line(f"branch {delivered.branch}")
        screen.line(f"commit {delivered.commit_sha}")
    if (winner := state.candidates.get(state.winner_id)) is not None:
        artifacts = winner.artifacts
        files = artifacts.files_changed
        names = ", ".join(one_line(path, _MEMORY) for path in files[:_MOST_DECISIONS])
        names += f" and {len(files) - _MOST_DECISIONS} more" if len(files) > _MOST_DECISIONS else ""
        size = f"+{artifacts.insertions} -{artifacts.deletions} in {counted(len(files), 'file')}"
        screen.line(f"diff {size}: {names}")
    screen.line(f"task {state.task.task_id}: {one_line(state.task.description, 200)}", style="bold")
    screen.line(f"execution {state.execution_id}")
    if state.context is not None:
        print_context(screen, state.context)
    _print_baseline(screen, state)
    if state.task.workflow is not None:
        screen.out.print(nodes_table(node_row(node) for node in state.nodes.values()))
        if state.output is not None:
            print_outputs(screen, state.output.output or '"large; --json of fleet workflow show has it"')
    elif state.ranking or state.agents:
        screen.out.print(candidates_table(state, verdict=verdict))
    _print_checklist(screen, state)
    _print_examination(screen, state)
    print_pending(screen, state)
    if diff:
        print_diff(screen, diff)
    _print_kept(screen, state)
    _print_end(screen, state)


def next_commands(state: ExecutionState) -> Iterator[str]:
    """The commands a person may need next; each can be pasted unchanged."""
    repository = state.repository
    suites = state.baseline.suites if state.baseline is not None else ()
    untested = bool(state.baseline_error) or any(suite.unusable for suite in suites)
    if state.status.terminal and untested and state.verdict is not Verdict.VERIFIED:
        yield command_line(
            ("fleet", "env", "explain", "--repo", repository.location, "--ref", repository.shared_commit)
        )
    if state.delivered is not None and repository.location.startswith("/") and repository.bundle is None:
        # An unverified branch is to be read before it is merged.
        look = ("merge",) if state.verdict is Verdict.VERIFIED else ("diff", repository.shared_commit)
        yield command_line(("git", "-C", repository.location, *look, state.delivered.branch))
    if state.proposal is not None:
        yield f"fleet env export {state.execution_id}"
    if state.status is not ExecutionStatus.NO_WINNER or not state.ranking or state.task.kind is TaskKind.JUDGE:
        return
    best = state.ranking[0].candidate_id
    yield f"fleet show {state.execution_id}"
    candidate, report = state.candidates.get(best), state.reports.get(best)
    if candidate is not None and candidate.artifacts.patch is not None and candidate.artifacts.patch.size:
        yield f"fleet export {state.execution_id} --agent {best} --format patch"
        if report is not None and report.tree:
            yield f"fleet deliver {state.execution_id} {best}"


def _print_judgement(screen: Screen, state: ExecutionState) -> None:
    """Print the baseline, then each patch by rank with its verdict and reasons."""
    screen.line(f"task {state.task.task_id}: {one_line(state.task.description, 200)}", style="bold")
    screen.line(f"execution {state.execution_id}")
    _print_baseline(screen, state)
    for ranked in state.ranking:
        for name in (ranked.candidate_id, *ranked.duplicates):
            report = state.reports.get(name)
            if report is None or report.verdict is None:
                continue
            same = f" (the same change as {ranked.candidate_id})" if name != ranked.candidate_id else ""
            screen.line(f"{ranked.rank}. {name}: {report.verdict}{same}", style=VERDICT_STYLES[report.verdict])
            for reason in () if same else report.reasons:
                screen.line(f"     {one_line(reason, _REASON)}")
    _print_examination(screen, state)
    _print_kept(screen, state)
    _print_end(screen, state)


def _print_baseline(screen: Screen, state: ExecutionState) -> None:
    """Print the decisions about the environment, its environment run, and the tests of the untouched commit."""
    if state.baseline is not None:
        report = state.baseline.report
        for decision in report.decisions[:_MOST_DECISIONS]:
            source = f" ({one_line(decision.source, _REASON)})" if decision.source else ""
            screen.line(f"environment: {one_line(decision.what, _REASON)}{source}")
        for text in report.left_out[:_MOST_DECISIONS]:
            screen.line(f"environment: skipped: {one_line(text, _REASON)}", style="yellow")
    if (run := state.environment_run) is not None:
        used = "used" if run.kept else "not used"
        screen.line(f"environment run: {used}: {one_line(run.reason, _REASON)}")
    if state.baseline is not None or state.baseline_error:
        screen.line(f"{BASELINE}: {one_line(baseline_text(state.baseline, state.baseline_error), 1000)}")


def _print_checklist(screen: Screen, state: ExecutionState) -> None:
    """Print the items of the checklist that have a probe."""
    if state.checklist is None:
        return
    screen.line(f"{CHECKLIST}: {one_line(checklist_text(state.checklist), 1000)}")
    met = {True: "met before", False: "not met before", None: "changing or not run"}
    for item in state.checklist.probed:
        screen.line(f"  {one_line(item.name, _REASON)} ({met[item.met_before]})")


def _print_examination(screen: Screen, state: ExecutionState) -> None:
    """Print the results of candidates' new tests on each other's changes, and their contradictions."""
    examination = state.examination
    if examination is None:
        return
    if examination.sets:
        screen.line(f"{EXAMINATION}, passed of those that say anything:")
        screen.out.print(examination_table(examination))
    for clash in examination.conflicts[:_MOST_CONFLICTS]:
        text = f"{clash.candidate_id} fails {clash.test} of {clash.other_id}, which fails its {clash.other_test}"
        screen.line(f"at odds: {one_line(text, _REASON)}", style="yellow")
    for note in examination.notes:
        screen.line(f"{EXAMINATION}: {one_line(note, _REASON)}", style="yellow")


def _print_verdict(screen: Screen, state: ExecutionState) -> str:
    """Print the verdict on the winner, or on the best without one; returns its text if it was printed in full."""
    report = state.best_report
    if report is None or report.verdict is None:
        return ""
    best = state.winner_id or (state.ranking[0].candidate_id if state.ranking else "")
    subject = f"{state.winner_id} won" if state.winner_id else f"the best, {best}" if best else "the whole"
    screen.line(f"{report.verdict}: {subject}", style=VERDICT_STYLES[report.verdict])
    if (candidate := state.candidates.get(best)) is not None and candidate.summary.strip():
        screen.line(f"  {best} says: {one_line(candidate.summary, _REASON)}")
    for reason in report.reasons[:_MOST_REASONS]:
        screen.line(f"  {one_line(reason, _REASON)}")
    whole = len(report.reasons) <= _MOST_REASONS and max(map(len, report.reasons), default=0) <= _REASON
    return f"{report.verdict}: {'; '.join(report.reasons)}; " if whole else ""


def _print_advice(screen: Screen, state: ExecutionState) -> None:
    """Print advice for each reason that stopped agents, once."""
    excluded = {EXECUTION_SUBJECT, *side_runs(state)}
    stops = Counter(agent.stop_reason for name, agent in state.agents.items() if name not in excluded)
    for reason, advice in ADVICE.items():
        if stops[reason]:
            screen.line(f"  {counted(stops[reason], 'agent')} stopped with {reason}: {advice}; {PAGE}#{reason}")


def _print_kept(screen: Screen, state: ExecutionState) -> None:
    """Print the branch of the best refused candidate, and people's own deliveries."""
    if (kept := state.refused_kept) is not None:
        screen.line(f"{kept.candidate_id} is kept as {kept.delivered.branch} ({kept.delivered.commit_sha})")
    for delivery in state.hand_deliveries:
        why = f": {one_line(delivery.reason, _REASON)}" if delivery.reason else ""
        who, branch = one_line(delivery.by, _REASON), delivery.delivered.branch
        screen.line(f"{delivery.candidate_id} was delivered by {who} on branch {branch}{why}")


def _print_end(screen: Screen, state: ExecutionState) -> None:
    """Print the final status, the usage, and the next commands."""
    end, judged = f"{state.status}", state.task.kind is TaskKind.JUDGE
    if state.winner_id:
        end += f": {state.winner_id} is the best" if judged else f": {state.winner_id} won"
    # Without a winner the verdict above already gives the reason.
    if state.error and not (state.status is ExecutionStatus.NO_WINNER and state.verdict is not None):
        end += f": {one_line(state.error, 1000)}"
    spent = "" if judged else f", {state.usage.total_tokens:,} tokens"
    duration = f" ({state.duration_ms / 1000:.1f} s{spent})" if state.status.terminal else ""
    screen.line(end + duration, style=_STYLES.get(exit_of_state(state), "bold yellow"))
    items = expenses(state)
    for expense in items if spent and len(items) > 1 else ():
        screen.line(f"  {expense.purpose}: {expense.usage.total_tokens:,} tokens, {one_line(expense.bought, _REASON)}")
    if commands := tuple(next_commands(state)):
        screen.line("next:")
        for command in commands:
            screen.line(f"  {command}")


def print_context(screen: Screen, context: GatheredContext) -> None:
    """Print the size of the agents' project context, and the memories in it."""
    screen.line(f"context {gathered_text(context)}")
    for recollection in context.recalled:
        memory = recollection.memory
        screen.line(f"  recalled from {memory.namespace}: {one_line(memory.text, _MEMORY)}")
    if context.omitted:
        screen.line(f"  not in it: {one_line(', '.join(context.omitted), 2 * _MEMORY)}")


def print_diff(screen: Screen, diff: str) -> None:
    """Print a diff, in colour on a terminal; invisible characters are shown by name."""
    lines = visible(diff).splitlines()
    head = "\n".join(lines[:_DIFF_LINES])
    if screen.out.is_terminal:
        # Imported here: only a terminal needs it.
        from rich.syntax import Syntax

        screen.out.print(Syntax(head, "diff", theme="ansi_dark", background_color="default"))
    else:
        screen.line(head)
    if len(lines) > _DIFF_LINES:
        screen.line(f"... {len(lines) - _DIFF_LINES} more lines; --json has them all", style="dim")

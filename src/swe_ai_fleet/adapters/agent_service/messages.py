"""Assignments and results between domain values and `fleet.agent.v1`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain

from fleet.agent.v1 import agent_pb2 as pb
from swe_ai_fleet.agents.outside_agent import AgentFault, HandedIn, Handout, Said
from swe_ai_fleet.contract import from_message, to_message
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import CheckReport, Perspective
from swe_ai_fleet.domain.review import Critique
from swe_ai_fleet.domain.task import Task
from swe_ai_fleet.domain.text import well_formed
from swe_ai_fleet.ports import SecretMask

CHUNK_BYTES = 256 * 1024
MAX_COUNT = 10**12
MAX_COST = 1e9
MAX_CRITIQUES = 16
MAX_TEXT_CHARS = 16_000
_MOST_FINDINGS = 50
_COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens", "model_calls", "tool_calls", "duration_ms")


def requests_of(handout: Handout, mask: SecretMask) -> Iterator[pb.SolveRequest]:
    """The messages of one call: the assignment, the bundle, the revised patch."""
    return chain(
        (pb.SolveRequest(assignment=_assignment(handout, lambda text: mask(well_formed(text)))),),
        (pb.SolveRequest(bundle=chunk) for chunk in _chunks(handout.repository.data)),
        (pb.SolveRequest(revised_patch=chunk) for chunk in _chunks(handout.revised_patch)),
    )


def answer_of(response: pb.SolveResponse) -> Said | HandedIn:
    """What an agent says. Raises AgentFault for a message that says nothing."""
    match response.WhichOneof("part"):
        case "progress":
            return Said(text=response.progress.text)
        case "result":
            result = response.result
            return HandedIn(patch=result.patch, summary=result.summary, usage=_usage(result.usage))
        case _:
            raise AgentFault("the agent sent a message without progress or result")


def _chunks(data: bytes) -> Iterator[bytes]:
    for offset in range(0, len(data), CHUNK_BYTES):
        yield data[offset : offset + CHUNK_BYTES]


def _assignment(handout: Handout, mask: SecretMask) -> pb.Assignment:
    given = handout.assignment
    task, revision = given.task, given.revision
    told = pb.Assignment(
        execution_id=given.execution_id,
        agent_id=given.agent_id,
        attempt=given.generation,
        task_id=task.task_id,
        role=str(task.role),
        task_description=mask(task.description),
        context=mask(task.context),
        constraints=_constraints(task, mask),
        repository=pb.Repository(
            base_commit=handout.repository.commit,
            branch=given.repository.branch,
            subdirectory=given.repository.subdirectory,
            bundle_bytes=len(handout.repository.data),
            without_history=handout.repository.without_history,
        ),
        perspective=_perspective(given.perspective),
    )
    if revision is not None:
        told.revision.CopyFrom(
            pb.Revision(
                round=revision.round,
                patch_bytes=len(handout.revised_patch),
                checks=_checks(revision.report, mask),
                critiques=[_critique(one, mask) for one in revision.critiques[:MAX_CRITIQUES] if not one.error],
            )
        )
    return told


def _constraints(task: Task, mask: SecretMask) -> pb.Constraints:
    given, limits = task.constraints, task.constraints.limits
    return pb.Constraints(
        rubric=mask(given.rubric),
        requirements=[mask(each) for each in given.requirements],
        allowed_paths=given.allowed_paths,
        checks=[
            pb.Check(
                name=mask(check.name),
                command=mask(check.command),
                timeout_seconds=int(check.timeout_seconds),
                required=check.required,
                expected_exit_code=check.expected_exit_code,
            )
            for check in given.checks
        ],
        timeout_seconds=max(1, int(limits.timeout_seconds)),
        max_tokens=limits.max_tokens,
        max_tool_calls=limits.max_tool_calls,
        max_cost=limits.max_cost,
        metadata={mask(name): mask(value) for name, value in given.metadata.items()},
        read_only=not task.enable_tools,
    )


def _perspective(given: Perspective) -> pb.Perspective:
    return to_message(pb.Perspective, given)


def _checks(report: CheckReport, mask: SecretMask) -> list[pb.CheckResult]:
    return [
        pb.CheckResult(
            name=result.name,
            passed=result.passed,
            message=mask(result.message[:MAX_TEXT_CHARS]),
            output=mask(result.output[-MAX_TEXT_CHARS:]),
            problems=[mask(each[:MAX_TEXT_CHARS]) for each in result.problems[:_MOST_FINDINGS]],
        )
        for result in report.results
        if not result.skipped_reason
    ]


def _critique(critique: Critique, mask: SecretMask) -> pb.Critique:
    return pb.Critique(
        reviewer_id=critique.reviewer_id,
        score=critique.score,
        content=mask(critique.content[:MAX_TEXT_CHARS]),
        findings=[
            pb.Finding(
                text=mask(finding.text[:MAX_TEXT_CHARS]),
                file=finding.file,
                line=finding.line,
                must_fix=finding.must_fix,
            )
            for finding in critique.findings[:_MOST_FINDINGS]
        ],
    )


def _usage(told: pb.Usage) -> Usage:
    """An agent's own count, kept to what a count can be."""
    cost = told.cost_usd or told.cost
    return from_message(
        Usage,
        told,
        **{one: _count(getattr(told, one)) for one in _COUNTS},
        cost=min(max(cost, 0.0), MAX_COST) if math.isfinite(cost) else 0.0,
    )


def _count(value: int) -> int:
    return min(max(value, 0), MAX_COUNT)

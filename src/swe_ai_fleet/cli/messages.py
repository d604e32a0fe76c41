"""Messages of the contract as people and programs write and read them: enumerations as words, all the rest as JSON.

Executions have JSON documents of their own, for programs.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import asdict
from typing import Any, cast

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.exits import CommandFault, Exit, exit_of_state
from swe_ai_fleet.codec import to_plain
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import RankedCandidate
from swe_ai_fleet.domain.context import GatheredContext
from swe_ai_fleet.domain.event import EXECUTION_SUBJECT
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.orchestrator.spending import expenses
from swe_ai_fleet.watching.events import moment


def enum_word(kind: Any, number: int) -> str:
    """A value of an enumeration, such as `pb.Role`, as the command line writes it: `in_progress`; empty for none."""
    return _word(kind.DESCRIPTOR, number)


def enum_name(kind: Any, word: str, *, field: str) -> str:
    """The name of the enumeration's value that a word says, that of none for no word. Raises CommandFault."""
    return kind.Name(_numbered(kind.DESCRIPTOR, word, field))


def _numbered(kind: EnumDescriptor, word: str, field: str) -> int:
    names = [value.name for value in kind.values]
    if not word:
        return kind.values_by_name[names[0]].number
    prefix = _prefix(kind)
    name = f"{prefix}{word.strip().upper().replace('-', '_')}"
    if name not in names[1:]:
        words = ", ".join(one.removeprefix(prefix).lower() for one in names[1:])
        raise CommandFault(f"{word[:64]!r} is unknown", exit_code=Exit.USAGE, field=field, hint=f"one of {words}")
    return kind.values_by_name[name].number


def document(message: Message, only: Container[str] | None = None) -> dict[str, Any]:
    """A message as JSON: every field (of those named in `only`) under its own name, enumerations as words.

    What is not there is left out.
    """
    found: dict[str, Any] = {}
    for field in cast("Sequence[FieldDescriptor]", message.DESCRIPTOR.fields):
        if only is not None and field.name not in only:
            continue
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            found[field.name] = dict(value)
        elif field.is_repeated:
            found[field.name] = [_plain(field, one) for one in value]
        elif not field.has_presence or message.HasField(field.name):
            found[field.name] = _plain(field, value)
    return found


def put(message: Message, path: str, value: Any, *, named: str) -> None:
    """Set a field to what an option says; nothing where that is what the field has anyway.

    Args:
        message: To be changed.
        path: Of the field; dots lead into messages, and of a list of messages each value makes one.
        value: Words for enumerations, `K=V` for maps.
        named: What faults call the option.

    Raises:
        CommandFault: It is no value of the enumeration, or no `K=V`.
    """
    *way, last = path.split(".")
    field = field_of(message.DESCRIPTOR, path)
    if value is None or (not value and not field.has_presence):
        return
    for place, part in enumerate(way):
        inner: Any = getattr(message, part)
        if message.DESCRIPTOR.fields_by_name[part].is_repeated:
            for one in value:
                put(inner.add(), ".".join((*way[place + 1 :], last)), one, named=named)
            return
        message = inner
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        getattr(message, last).update(pairs(value, named))
        return
    if field.enum_type is not None:
        names = [_numbered(field.enum_type, word, named) for word in ([value] if isinstance(value, str) else value)]
        value = names if field.is_repeated else names[0]
    if field.is_repeated:
        getattr(message, last).extend(value)
    else:
        setattr(message, last, value)


def field_of(kind: Any, path: str) -> FieldDescriptor:
    """A field of a message's descriptor; dots lead into messages. Raises KeyError."""
    *way, last = path.split(".")
    for part in way:
        kind = kind.fields_by_name[part].message_type
    return kind.fields_by_name[last]


def has_field(kind: Any, path: str) -> bool:
    """Whether a message's descriptor has a field; dots lead into messages."""
    try:
        return bool(field_of(kind, path))
    except (KeyError, AttributeError):
        return False


def pairs(texts: Sequence[str], named: str) -> dict[str, str]:
    """Values that are given as `K=V`, by name. Raises CommandFault naming the option."""
    found: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise CommandFault(f"{text[:80]!r} is not K=V", exit_code=Exit.USAGE, field=named)
        found[name] = value
    return found


def _plain(field: FieldDescriptor, value: Any) -> object:
    if isinstance(value, Message):
        return document(value)
    return value if field.enum_type is None else _word(field.enum_type, value)


def _word(kind: EnumDescriptor, number: int) -> str:
    if not number:
        return ""
    # A newer server may have values of which this version knows no name.
    known = kind.values_by_number.get(number)
    return str(number) if known is None else known.name.removeprefix(_prefix(kind)).lower()


def _prefix(kind: EnumDescriptor) -> str:
    """What the names of an enumeration's values begin with: `DELIBERATION_STATUS_`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.name).upper() + "_"


def execution_document(state: ExecutionState, *, diff: str) -> dict[str, object]:
    """An execution with its candidates, best first. `diff` is the winner's."""
    delivered, best = state.delivered, state.best_report
    return {
        "execution_id": state.execution_id,
        "task_id": state.task.task_id,
        "kind": str(state.task.kind),
        "task": state.task.description,
        "status": str(state.status),
        "exit_code": int(exit_of_state(state)),
        "verdict": str(state.verdict or ""),
        "verdict_reasons": list(best.reasons) if best else [],
        "base_commit": state.repository.commit,
        "baseline": _baseline(state),
        "examination": to_plain(state.examination) if state.examination is not None else None,
        "checklist": to_plain(state.checklist) if state.checklist is not None else None,
        "environment_run": to_plain(state.environment_run) if state.environment_run is not None else None,
        "context": _context(state.context) if state.context is not None else None,
        "winner": state.winner_id,
        "branch": delivered.branch if delivered else "",
        "commit": delivered.commit_sha if delivered else "",
        "refused_kept": to_plain(state.refused_kept) if state.refused_kept else None,
        "hand_deliveries": [to_plain(one) for one in state.hand_deliveries],
        "candidates": [_candidate(state, ranked) for ranked in state.ranking],
        "agents": [
            {**asdict(agent), "usage": _usage(agent.usage)}
            for name, agent in state.agents.items()
            if name != EXECUTION_SUBJECT
        ],
        "pending_approvals": [to_plain(request) for request in state.pending],
        "diff": diff,
        "error": state.error,
        "usage": _usage(state.usage),
        "expenses": [{**to_plain(one), "usage": _usage(one.usage)} for one in expenses(state)],
        "duration_ms": state.duration_ms,
        "started_at": state.started_at,
        "finished_at": state.finished_at,
    }


def listed_document(execution: pb.Execution) -> dict[str, object]:
    """An execution as lists show it."""
    return {
        "execution_id": execution.execution_id,
        "task_id": execution.task_id,
        "kind": enum_word(pb.ExecutionKind, execution.kind),
        "status": enum_word(pb.DeliberationStatus, execution.status),
        "role": enum_word(pb.Role, execution.role).upper(),
        "task": execution.task_description,
        "winner": execution.winner_id,
        "verdict": enum_word(pb.EvidenceVerdict, execution.verdict),
        "created_at": moment(execution.created_at_ms),
        "finished_at": moment(execution.finished_at_ms),
    }


def _candidate(state: ExecutionState, ranked: RankedCandidate) -> dict[str, object]:
    candidate = state.candidates.get(ranked.candidate_id)
    report = state.reports.get(ranked.candidate_id)
    document: dict[str, object] = {
        **asdict(ranked),
        "duplicates": list(ranked.duplicates),
        "verdict": str(report.verdict or "") if report else "",
        "verdict_reasons": list(report.reasons) if report else [],
        "checks": [to_plain(result) for result in report.results] if report else [],
    }
    if candidate is None:
        return document
    return document | {
        "agent_id": candidate.agent_id,
        "answer": candidate.summary,
        "stop_reason": str(candidate.stop_reason),
        "files_changed": list(candidate.artifacts.files_changed),
        "insertions": candidate.artifacts.insertions,
        "deletions": candidate.artifacts.deletions,
        "usage": _usage(candidate.usage),
        "audit_head": candidate.audit_head,
    }


def _baseline(state: ExecutionState) -> dict[str, object] | None:
    if state.baseline is None and not state.baseline_error:
        return None
    plain = to_plain(state.baseline) if state.baseline is not None else None
    return {"summary": state.baseline.line if state.baseline else "", "error": state.baseline_error, "tests": plain}


def _context(context: GatheredContext) -> dict[str, object]:
    return {
        "tokens": context.tokens,
        "version": context.version,
        "omitted": list(context.omitted),
        "recalled": [
            {
                "memory_id": found.memory.memory_id,
                "namespace": found.memory.namespace,
                "text": found.memory.text,
                "source": found.memory.source,
                "score": found.score,
            }
            for found in context.recalled
        ],
    }


def _usage(usage: Usage) -> dict[str, object]:
    return {**asdict(usage), "total_tokens": usage.total_tokens}

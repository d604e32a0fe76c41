"""The domain's own rules: the fold over events, what a task must be, ids, the audit chain."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.domain.audit import GENESIS, AuditEntry, SignedHead, verify
from swe_ai_fleet.domain.budget import Limits
from swe_ai_fleet.domain.candidate import CheckKind, CheckReport, CheckResult
from swe_ai_fleet.domain.command import CheckSpec
from swe_ai_fleet.domain.errors import Fenced, FleetError, InvalidRequest, ModelUnavailable
from swe_ai_fleet.domain.task import (
    MAX_DESCRIPTION_BYTES,
    Constraints,
    Delivery,
    RepoRef,
    Role,
    Task,
    TaskKind,
    execution_id,
)
from swe_ai_fleet.domain.text import check_identifier
from tests.tables import table

TASK = Task(
    task_id="task-1",
    kind=TaskKind.DELIBERATE,
    description="Fix the bug.",
    repo=RepoRef(location="https://example.org/r.git"),
)
ENTRY = AuditEntry(
    seq=1,
    at="2026-01-01T00:00:00.000+00:00",
    execution_id="e",
    agent_id="agent-1",
    call_id="c",
    tool="files",
    operation="mkdir",
).sealed(GENESIS)


def with_limits(**changes: float) -> Task:
    return replace(TASK, constraints=Constraints(limits=replace(Limits(), **changes)))  # type: ignore[arg-type]


FINE = CheckSpec(name="fine", command="true")


class TestTaskValidation:
    @table(
        ("task", "field"),
        [
            (TASK, ""),
            (replace(TASK, task_id="a b"), "task_id"),
            (replace(TASK, description=" \n"), "task_description"),
            (replace(TASK, description="\u00e9" * (MAX_DESCRIPTION_BYTES // 2 + 1)), "task_description"),
            (replace(TASK, repo=RepoRef(location=" ")), "repo"),
            (replace(TASK, delivery=Delivery(branch="-d")), "delivery.branch"),
            (replace(TASK, num_agents=-1), "num_agents"),
            (replace(TASK, num_agents=9), "num_agents"),
            (replace(TASK, max_agents=9), "max_agents"),
            (replace(TASK, rounds=-2), "rounds"),
            (replace(TASK, attempt=0), "attempt"),
            (with_limits(max_iterations=0), "constraints.max_iterations"),
            (with_limits(max_tokens=-1), "constraints.max_tokens"),
            (with_limits(timeout_seconds=float("inf")), "constraints.timeout_seconds"),
            (
                replace(TASK, constraints=Constraints(checks=(FINE, replace(FINE, command="  ")))),
                "constraints.checks[1].command",
            ),
        ],
    )
    def test_each_bad_field_is_named(self, task: Task, field: str) -> None:
        try:
            assert task.validated(max_agents=8) is task
        except InvalidRequest as caught:
            assert caught.field == field
        else:
            assert not field

    def test_identifiers_that_may_stand_in_subjects_and_branches(self) -> None:
        for text in ("a", "A.b_c-9", "x" * 128, "0"):
            assert check_identifier(text, field="task_id") == text
        for text in ("", "x" * 129, "-a", ".a", "a..b", "a.", "a.lock", "a/b", "a*", "a>", "\u00e4", "a\n", "a b"):
            with pytest.raises(InvalidRequest, match="is not a valid id"):
                check_identifier(text, field="task_id")


words = st.text(st.characters(codec="utf-8", exclude_characters="\x1f"), max_size=5)
keys = st.tuples(words, st.sampled_from(TaskKind), words, st.integers(1, 20))


class TestIdentity:
    def test_the_execution_id_is_for_ever(self) -> None:
        assert TASK.execution_id == "d87efd6c-0651-53d3-870c-3619b4bf2e2d"

    @given(keys, keys)
    def test_it_tells_tenant_kind_task_and_attempt_apart(
        self, one: tuple[str, TaskKind, str, int], other: tuple[str, TaskKind, str, int]
    ) -> None:
        def identify(tenant: str, kind: TaskKind, task_id: str, attempt: int) -> str:
            return execution_id(tenant=tenant, kind=kind, task_id=task_id, attempt=attempt)

        assert (identify(*one) == identify(*other)) == (one == other)

    @table(
        "change",
        [{"description": "Fix it."}, {"num_agents": 2}, {"role": Role.QA}, {"constraints": Constraints(rubric="x")}],
    )
    def test_the_fingerprint_tells_other_content(self, change: dict[str, object]) -> None:
        assert replace(TASK, **change).fingerprint() != TASK.fingerprint()  # type: ignore[arg-type]
        assert replace(TASK).fingerprint() == TASK.fingerprint()


def chain(length: int) -> list[AuditEntry]:
    entries: list[AuditEntry] = []
    for number in range(length):
        previous = entries[-1].hash if entries else GENESIS
        entries.append(replace(ENTRY, seq=number + 1, arguments={"path": f"\u00e9{number}\ud800"}).sealed(previous))
    return entries


class TestAuditChain:
    def test_an_empty_chain_is_whole_and_its_head_is_known(self) -> None:
        assert verify([]) is None
        assert verify([], head=GENESIS) is None
        assert verify([], head="f" * 64) is not None

    def test_a_hash_can_be_computed_elsewhere(self) -> None:
        assert ENTRY.hash == "064dc899dd23596d55c6c50614d0ae3eafd950d2a77a00b2f38f8c3d07bf3a3d"

    @given(
        length=st.integers(1, 8),
        data=st.data(),
        change=st.sampled_from(
            ["seq", "at", "agent_id", "tool", "arguments", "decision", "outcome", "exit_code", "prev_hash", "hash"]
        ),
    )
    def test_any_change_is_found_at_its_place(self, length: int, data: st.DataObject, change: str) -> None:
        entries = chain(length)
        at = data.draw(st.integers(0, length - 1))
        other: dict[str, object] = {
            "seq": 99,
            "arguments": {"path": "x"},
            "decision": "refused",
            "outcome": "error",
            "exit_code": 1,
        }
        entries[at] = replace(entries[at], **{change: other.get(change, "0" * 63 + "1")})  # type: ignore[arg-type]
        fault = verify(entries)
        assert fault is not None
        assert fault.seq == (99 if change == "seq" else at + 1)


class TestSmallRules:
    @table("make", [FleetError, InvalidRequest, Fenced, ModelUnavailable])
    def test_faults_survive_a_process_boundary(self, make: Callable[..., FleetError]) -> None:
        back = pickle.loads(pickle.dumps(make("it broke", field="repo", hint="try again")))
        assert type(back) is make
        assert (str(back), back.field, back.hint) == ("it broke (try again)", "repo", "try again")

    def test_a_report_is_accepted_on_evidence_only(self) -> None:
        def accepted(*results: tuple[bool, bool, str]) -> bool:
            checks = [
                CheckResult(kind=CheckKind.COMMAND, name=str(n), passed=passed, required=required, skipped_reason=why)
                for n, (passed, required, why) in enumerate(results)
            ]
            return CheckReport(candidate_id="c", results=tuple(checks)).accepted

        passed, failed, optional = (True, True, ""), (False, True, ""), (False, False, "")
        assert [accepted(passed), accepted(passed, optional), accepted(passed, (False, True, "no linter"))] == [
            True
        ] * 3
        assert not any(
            accepted(*one) for one in ((), (passed, failed), ((True, True, "no tests"),), ((True, False, ""),))
        )

    def test_what_is_signed_of_a_chain_stays_as_it_is(self) -> None:
        head = SignedHead(agent_id="a", run=2, entries=3, hash="f")
        fields = b'{"agent_id":"a","entries":3,"execution_id":"e","hash":"f","run":2}'
        assert head.message("e") == b"swe-ai-fleet audit head, version 1\n" + fields

    def test_audit_entries_have_one_canonical_form(self) -> None:
        one = replace(ENTRY, arguments={"a": 1, "b": 2})
        assert one.digest() == replace(ENTRY, arguments={"b": 2, "a": 1}).digest()
        json.dumps(dict(one.arguments))
        assert one.name == f"{one.tool}_{one.operation}"

"""The trail of one run: what each entry records, and which of it somebody else can compute."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from swe_ai_fleet.domain.audit import GENESIS, AuditEntry, verify
from swe_ai_fleet.domain.tool import OperationSpec, Outcome, PolicyDecision, ToolResult
from swe_ai_fleet.tools.audit import AuditRecord, AuditTrail

SPEC = OperationSpec(name="shell_run", tool="shell", operation="run", description="", parameters={})


def opened(trail: AuditTrail, call_id: str = "c1", **secret: object) -> AuditRecord:
    return trail.open(SPEC, arguments={"path": "***"}, secret=secret, call_id=call_id)


def said(**told: object) -> ToolResult:
    return ToolResult(**{"success": True, "operation": "shell_run", **told})


def closed(result: ToolResult, whole: str = "") -> AuditEntry:
    trail = AuditTrail(execution_id="e", agent_id="a")
    assert opened(trail).close(result, whole=whole) is result
    return trail.entries[-1]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_who_has_the_key_can_compute_the_digest_of_arguments() -> None:
    trail, one, other = AuditTrail(key=b"k"), AuditTrail(), AuditTrail()
    opened(trail, b=Path("x"), a=[1, "é"]).close(said())
    opened(trail, a=[1, "é"], b=Path("x")).close(said())
    canonical = b'{"a":[1,"\\u00e9"],"b":"' + repr(Path("x")).encode() + b'"}'
    expected = hmac.new(b"k", canonical, hashlib.sha256).hexdigest()
    assert [entry.arguments_digest for entry in trail.entries] == [expected, expected]
    for nobodys in (one, other):
        opened(nobodys, a=1).close(said())
    assert one.entries[0].arguments_digest != other.entries[0].arguments_digest


def test_an_entry_says_what_came_of_the_call() -> None:
    failed = said(success=False, error="no", outcome=Outcome.ERROR, exit_code=3, duration=0.25)
    entry = closed(failed)
    assert (entry.outcome, entry.exit_code, entry.duration_ms) == (Outcome.ERROR, 3, 250)
    assert (entry.output_digest, entry.bytes_out) == (digest("no"), 2)
    trail = AuditTrail()
    opened(trail).close(failed, PolicyDecision.REFUSED, "a rule")
    refused = trail.entries[-1]
    assert (refused.decision, refused.reason, entry.decision) == (
        PolicyDecision.REFUSED,
        "a rule",
        PolicyDecision.ALLOWED,
    )
    cut = said(content="cut…", error="beside")
    assert closed(cut).output_digest == digest("cut…")
    assert closed(cut, whole="all of it").output_digest == digest("all of it")
    assert closed(said(content="half \ud800")).bytes_out == len("half ?")
    # A call that no model named has a name of its own.
    for _ in range(2):
        opened(trail, call_id="").close(said())
    assert len({"", *(entry.call_id for entry in trail.entries[-2:])}) == 3


async def test_a_trail_may_go_on_a_chain_that_is_kept_elsewhere() -> None:
    kept: list[AuditEntry] = []

    def seal(entry: AuditEntry) -> AuditEntry:
        kept.append(entry.sealed(kept[-1].hash if kept else GENESIS))
        return kept[-1]

    one, other = AuditTrail(agent_id="a", seal=seal), AuditTrail(agent_id="b", seal=seal)
    await opened(one).start()
    opened(other).close(said())
    assert one.entries + other.entries == kept
    assert other.entries[0].prev_hash == one.head == kept[0].hash
    assert verify(one.entries, head=one.head) is None

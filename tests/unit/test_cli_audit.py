"""Audit chains rebuilt from events."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.codec import from_plain, to_json
from swe_ai_fleet.domain import event as ev
from swe_ai_fleet.domain.audit import GENESIS, AuditEntry, RedactedChain, SignedHead
from swe_ai_fleet.domain.audit_chains import AuditChains, ChainedEntry, ChainVerdict, Signing, signed_throughout
from swe_ai_fleet.domain.candidate import Candidate
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.watching.events import Chains, stored_event, verify_events
from tests.event_source import numbered
from tests.sampling import sample
from tests.tables import table

Events = list[pb.ExecutionEvent]


def chain(agent_id: str, length: int) -> list[AuditEntry]:
    entries: list[AuditEntry] = []
    for number in range(1, length + 1):
        entry = sample(
            AuditEntry,
            seq=number,
            execution_id="e",
            agent_id=agent_id,
            call_id=f"c{number}",
            arguments={"path": f"{number}.txt", "n": number, "deep": None},
            outcome=Outcome.STARTED if number % 2 else Outcome.SUCCESS,
        )
        entries.append(entry.sealed(entries[-1].hash if entries else GENESIS))
    return entries


def run_of(agent_id: str, length: int = 6, generation: int = 1) -> list[tuple[str, ev.EventBody]]:
    entries = chain(agent_id, length)
    head = entries[-1].hash if entries else GENESIS
    bodies: list[ev.EventBody] = [ev.RunClaimed(generation=generation, host="h")]
    for entry in entries:
        result = ToolResult(success=True, operation="files_write_file")
        started = entry.outcome is Outcome.STARTED
        bodies.append(ev.ToolStarted(entry=entry) if started else ev.ToolFinished(entry=entry, result=result))
    bodies.append(sample(ev.RunFinished, stop_reason=StopReason.FINAL_ANSWER, audit_head=head))
    candidate = sample(Candidate, candidate_id=agent_id, agent_id=agent_id, audit_head=head)
    return [(agent_id, body) for body in bodies] + [("_", ev.CandidateSubmitted(candidate=candidate))]


def events(*told: tuple[str, ev.EventBody]) -> Events:
    return numbered("e", told)


def only(verdicts: tuple[ChainVerdict, ...]) -> ChainVerdict:
    assert len(verdicts) == 1
    return verdicts[0]


def test_untouched_chains_are_intact_however_their_events_are_mixed() -> None:
    first, second = run_of("a"), run_of("b", 4)
    mixed = [told for pair in zip(first, second, strict=False) for told in pair] + first[len(second) :]
    log = events(*mixed, *run_of("idle", 0))
    # Events of a later version are passed over.
    log.insert(2, pb.ExecutionEvent(sequence=6, agent_id="a", type="brand_new", payload_json="{}"))
    verdicts = verify_events(log)
    assert [(v.agent_id, v.entries, v.intact) for v in verdicts] == [("a", 6, True), ("b", 4, True), ("idle", 0, True)]
    assert all(v.head == v.recorded_head != "" for v in verdicts[:2])


def test_a_resumed_run_goes_on_with_its_chain() -> None:
    told = run_of("a")
    cancelled = sample(ev.RunFinished, stop_reason=StopReason.CANCELLED, audit_head=chain("a", 2)[-1].hash)
    middle = [("a", cancelled), ("a", ev.RunClaimed(generation=2, host="h2", resumes=True))]
    verdict = only(verify_events(events(*told[:3], *middle, *told[3:])))
    assert (verdict.intact, verdict.entries, verdict.run) == (True, 6, 1)
    # An entry lost at the seam is found, and a run that does not resume has a chain of its own.
    assert not only(verify_events(events(*told[:2], *middle, *told[3:]))).intact
    anew = [("a", ev.RunClaimed(generation=2, host="h2"))]
    assert [one.intact for one in verify_events(events(*told[:3], *anew, *told[3:]))] == [True, False]


def change_argument(log: Events) -> None:
    payload = json.loads(log[3].payload_json)
    payload["entry"]["arguments"]["path"] = "other.txt"
    log[3].payload_json = json.dumps(payload)


def change_outcome(log: Events) -> None:
    log[4].payload_json = log[4].payload_json.replace('"success"', '"refused"', 1)


def swap(log: Events) -> None:
    log[2].payload_json, log[4].payload_json = log[4].payload_json, log[2].payload_json
    log[2].type, log[4].type = log[4].type, log[2].type


def reseal_everything_from_the_third_entry(log: Events) -> None:
    previous = json.loads(log[2].payload_json)["entry"]["hash"]
    for event in log[3:7]:
        payload = json.loads(event.payload_json)
        forged = from_plain(AuditEntry, {**payload["entry"], "arguments": {"path": "forged"}})
        entry = forged.sealed(previous)
        payload["entry"] = json.loads(to_json(entry))
        event.payload_json, previous = json.dumps(payload), entry.hash


@table(
    ("tamper", "first_fault"),
    [
        (change_argument, 3),
        (change_outcome, 4),
        (swap, 4),
        (lambda log: log.pop(3), 4),
        (lambda log: log.pop(6), 5),
        (lambda log: log.insert(4, log[3]), 3),
        (reseal_everything_from_the_third_entry, 6),
        (lambda log: setattr(log[2], "payload_json", "{}"), 2),
    ],
)
def test_the_first_entry_that_does_not_fit_is_named(tamper: Callable[[Events], object], first_fault: int) -> None:
    log = events(*run_of("a"), *run_of("b"))
    tamper(log)
    verdicts = {verdict.agent_id: verdict for verdict in verify_events(log)}
    fault = verdicts["a"].fault
    assert fault is not None and fault.seq == first_fault and fault.reason
    assert verdicts["b"].intact


def test_a_head_forged_in_the_run_differs_from_the_candidates_and_what_is_lost_at_the_end_from_the_runs() -> None:
    log = events(*run_of("a"))
    reseal_everything_from_the_third_entry(log)
    payload = json.loads(log[7].payload_json)
    payload["audit_head"] = json.loads(log[6].payload_json)["entry"]["hash"]
    log[7].payload_json = json.dumps(payload)
    assert not only(verify_events(log)).intact
    # A run that handed nothing in recorded the head of its chain all the same.
    *begun, _last, finished, _candidate = run_of("a")
    verdict = only(verify_events(events(*begun, finished)))
    assert (verdict.entries, verdict.intact) == (5, False)
    assert verdict.fault is not None and verdict.fault.seq == 5
    assert verdict.recorded_head not in ("", verdict.head)


def test_of_erased_entries_the_hashes_verify_and_nothing_else_passes_for_them() -> None:
    chains = Chains()
    log = events(*run_of("a"), *run_of("b", 4))
    for event in log:
        chains.add(event)
    broken = Chains()
    change_argument(log)
    for event in log:
        broken.add(event)
    whole = [chains.redacted(verdict.agent_id, verdict.run) for verdict in chains.verdicts()]

    def verdicts(*left: RedactedChain, by: str = "_") -> list[ChainVerdict]:
        body = ev.ExecutionErased(scope="execution", by="zoe", reason="a key", chains=left)
        return list(verify_events(events((by, body))))

    assert verdicts(*whole) == [replace(one, redacted=True) for one in chains.verdicts()]
    first = whole[0]
    for forged in (
        replace(first, hashes=first.hashes[: -len(GENESIS)]),
        replace(first, hashes=first.hashes[: -len(GENESIS)] + GENESIS),
        broken.redacted("a", 1),
    ):
        assert [one.intact for one in verdicts(forged, whole[1])] == [False, True]
    # An agent that says so erases nothing.
    assert verdicts(*whole, by="a") == []


def test_entries_of_another_agent_do_not_count() -> None:
    log = events(*((("a", body) if agent == "b" else (agent, body)) for agent, body in run_of("b")))
    fault = next(verdict.fault for verdict in verify_events(log) if verdict.agent_id == "a")
    assert fault is not None and "belongs to b" in fault.reason


def test_the_first_event_that_cannot_be_read_is_named() -> None:
    log = events(*run_of("a"))
    log[2].payload_json = log[4].payload_json = "{\n"
    fault = only(verify_events(log)).fault
    assert fault is not None
    assert fault.seq == 2
    assert fault.reason.startswith("event 7 (tool_finished) cannot be read: ")
    assert "\n" not in fault.reason


def take(chains: AuditChains, event: pb.ExecutionEvent) -> None:
    stored = stored_event(event)
    assert stored is not None
    chains.take(stored)


HASHES = (GENESIS, *(entry.hash for entry in chain("a", 6)))


def signed(entries: int, *, digest: str = "", key_id: str = "good") -> SignedHead:
    return SignedHead(agent_id="a", run=1, entries=entries, hash=digest or HASHES[entries], key_id=key_id)


class KeyRing:
    """Its one key signed heads of execution `e`."""

    def fault(self, head: SignedHead, execution_id: str) -> str:
        return (
            "" if (head.key_id, execution_id) == ("good", "e") else f"{head.key_id} did not sign this of {execution_id}"
        )


@pytest.mark.parametrize(
    ("heads", "signing", "length", "fault"),
    [
        ((), Signing.NONE, 0, None),
        ((signed(2),), Signing.PART, 2, None),
        ((signed(6), signed(2)), Signing.WHOLE, 6, None),
        ((signed(2), signed(6)), Signing.WHOLE, 6, None),
        ((signed(0),), Signing.PART, 0, None),
        ((signed(0, digest=HASHES[1]),), Signing.PART, 0, (0, "it is not the entry that was signed")),
        ((signed(2, digest=HASHES[3]),), Signing.PART, 2, (2, "it is not the entry that was signed")),
        ((signed(8, digest=HASHES[6]),), Signing.PART, 8, (7, "entries up to 8 were signed, and are gone")),
        ((signed(6), signed(2, key_id="bad")), Signing.WHOLE, 6, (2, "bad did not sign this of e")),
        ((signed(-1),), Signing.PART, -1, (-1, "-1 entries cannot have been signed")),
    ],
)
def test_what_was_signed_must_be_there(
    heads: tuple[SignedHead, ...], signing: Signing, length: int, fault: tuple[int, str] | None
) -> None:
    log = events(*run_of("a"), *(("_", ev.AuditHeadSigned(head=head)) for head in heads))
    verdict = only(verify_events(log, KeyRing()))
    assert (verdict.signing, verdict.signed_entries, bool(verdict.key_id)) == (signing, length, bool(heads))
    assert (verdict.fault and (verdict.fault.seq, verdict.fault.reason)) == fault
    # Nobody said which keys count.
    unchecked = only(verify_events(log))
    assert (unchecked.signing, unchecked.fault) == (Signing.UNCHECKED if heads else Signing.NONE, None)
    refused = only(signed_throughout((verdict,))).fault
    assert refused == verdict.fault if fault or signing is Signing.WHOLE else refused and refused.seq == length + 1
    # An agent signs nothing.
    assert only(verify_events(events(*run_of("a"), *(("a", ev.AuditHeadSigned(head=head)) for head in heads)))).intact


def test_heads_of_another_execution_do_not_count() -> None:
    told = [*run_of("a"), ("_", ev.AuditHeadSigned(head=signed(6)))]
    assert [only(verify_events(numbered(name, told), KeyRing())).intact for name in ("e", "f")] == [True, False]
    for name in ("e", "f"):
        # Whoever knows the execution need not be told by its events.
        chains = AuditChains(KeyRing(), execution_id=name)
        for event in numbered("another", told):
            take(chains, event)
        assert only(chains.verdicts()).intact == (name == "e")


def test_what_is_still_to_be_signed() -> None:
    chains = AuditChains()
    chains.begin("idle")
    chains.unreadable("unseen", "it cannot be read")
    chains.record("never claimed", GENESIS)
    for agent_id, length in (("a", 2), ("b", 1)):
        for entry in chain(agent_id, length):
            assert chains.append(agent_id, entry) == ChainedEntry(agent_id=agent_id, run=1, entry=entry)
    chains.begin("a")
    assert [(head.agent_id, head.run, head.entries) for head in chains.unsigned()] == [
        *(("idle", 1, 0), ("a", 1, 2), ("a", 2, 0), ("b", 1, 1)),
    ]
    for head in list(chains.unsigned("a")):
        chains.sign(head)
    assert [head.agent_id for head in chains.unsigned()] == ["idle", "b"]
    chains.append("b", chain("a", 1)[0])
    assert [head.agent_id for head in chains.unsigned()] == ["idle"]
    resumed = AuditChains()
    take(resumed, events(("a", ev.RunClaimed(generation=2, host="h", resumes=True)))[0])
    assert [(head.agent_id, head.entries) for head in resumed.unsigned()] == [("a", 0)]
    # What only a signature is left of.
    resumed.sign(replace(signed(1), agent_id="gone"))
    assert [(one.agent_id, one.entries, one.signed_entries) for one in resumed.verdicts()] == [
        ("a", 0, 0),
        ("gone", 0, 1),
    ]


def test_what_is_left_of_a_chain() -> None:
    chains = AuditChains()
    for entry in chain("a", 2):
        chains.append("a", entry)
    chains.record("a", HASHES[2])
    for head in (signed(1), signed(2)):
        chains.sign(head)
    chains.begin("a")
    chains.append("a", replace(chain("a", 1)[0], hash="no digest"))
    left = RedactedChain(
        agent_id="a", run=1, hashes=HASHES[1] + HASHES[2], recorded=(HASHES[2],), signed=(signed(1), signed(2))
    )
    assert chains.redacted("a", 1) == left
    broken = chains.redacted("a", 2)
    assert (broken.hashes, broken.recorded, broken.signed, bool(broken.fault)) == (GENESIS, (), (), True)
    assert chains.redacted("a", 3) == RedactedChain(agent_id="a", run=3, hashes="")
    assert chains.redacted("c", 1) == RedactedChain(agent_id="c", run=1, hashes="")
    assert (chains.recorded("a", 3), chains.recorded("a", 2), chains.recorded("a", 1)) == ((), (), (HASHES[2],))
    again = AuditChains()
    for run in (1, 3):
        again.restore(chains.redacted("a", run))
    assert [(verdict.run, verdict.entries, verdict.intact) for verdict in again.verdicts()] == [
        (1, 2, True),
        (2, 0, True),
    ]

"""Somebody who can write the whole event log, and what agents did.

All of it is rewritten consistently: entries changed, every hash recomputed, the heads that runs and candidates recorded
replaced. What is left is what the orchestrator signed.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from swe_ai_fleet.codec import from_plain, to_plain
from swe_ai_fleet.domain import event as ev
from swe_ai_fleet.domain.audit import GENESIS, AuditEntry, SignedHead
from swe_ai_fleet.domain.audit_chains import AuditChains, ChainVerdict, Signing, signed_throughout
from swe_ai_fleet.domain.errors import AgentLost, FleetError
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.runtime.audit_keys import PublicKeys, SigningKey, keyless, new_key_pem, open_audit_keys, signing_key
from swe_ai_fleet.runtime.ray_fleet import RayFleet
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing.repositories import make_repository
from swe_ai_fleet.watching.events import audit_document, read_audit_document
from tests.conftest import FleetUnderTest
from tests.fleet_command import Shell
from tests.scripted_fleet import ScriptedRun
from tests.scripts import HELLO, HELLO_FILES
from tests.unit.test_executions import World, a_task

Log = list[ev.StoredEvent]
VICTIM = "agent-dev-1"


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Two executions of the same fleet, as their logs stood, and the keys that count."""

    first: Log
    second: Log
    keys: PublicKeys


async def recorded_by(key: SigningKey | None) -> tuple[Log, Log]:
    """What a real orchestrator records of two tasks of three agents; one agent of the first one is lost."""
    world, logs = World(signer=key), list[Log]()
    for name in ("first", "second"):
        runs = {VICTIM: ScriptedRun(operations=3), "agent-dev-2": ScriptedRun(operations=2)}
        lost = ScriptedRun(operations=2, fault=AgentLost("its host died"))
        world.fleet.runs = {**runs, "agent-dev-3": lost} if name == "first" else runs
        state = await world.run(a_task(name))
        logs.append([stored async for stored in world.log.read(DEFAULT_TENANT, state.execution_id)])
    return logs[0], logs[1]


@pytest.fixture
async def recorded() -> Recorded:
    key = signing_key(new_key_pem())
    first, second = await recorded_by(key)
    return Recorded(first=first, second=second, keys=PublicKeys.of([key.public]))


def verdicts(log: Sequence[ev.StoredEvent], keys: PublicKeys | None) -> tuple[ChainVerdict, ...]:
    chains = AuditChains(keys)
    for stored in log:
        chains.take(stored)
    return chains.verdicts()


def faults(log: Sequence[ev.StoredEvent], keys: PublicKeys | None) -> dict[str, str]:
    return {one.agent_id: one.fault.reason for one in verdicts(log, keys) if one.fault is not None}


def said(stored: ev.StoredEvent, body: ev.EventBody) -> ev.StoredEvent:
    return replace(stored, event=replace(stored.event, body=body))


def changed(log: Log, change: Callable[[ev.EventBody], ev.EventBody | None]) -> Log:
    """The log with every event as `change` has it; without those of which it has nothing."""
    bodies = ((stored, change(stored.event.body)) for stored in log)
    return [said(stored, body) for stored, body in bodies if body is not None]


def rewritten(log: Log, victim: str) -> Log:
    """The log with other arguments in one agent's entries, and every hash that follows from them recomputed."""
    heads = {GENESIS: GENESIS}

    def change(body: ev.EventBody) -> ev.EventBody:
        if isinstance(body, ev.ToolStarted | ev.ToolFinished) and body.entry.agent_id == victim:
            forged = replace(body.entry, arguments={"path": "harmless.py"}).sealed(heads[body.entry.prev_hash])
            heads[body.entry.hash] = forged.hash
            return replace(body, entry=forged)
        if isinstance(body, ev.RunFinished):
            return replace(body, audit_head=heads.get(body.audit_head, body.audit_head))
        if isinstance(body, ev.CandidateSubmitted):
            head = heads.get(body.candidate.audit_head, body.candidate.audit_head)
            return replace(body, candidate=replace(body.candidate, audit_head=head))
        return body

    return changed(log, change)


def with_heads(log: Log, change: Callable[[SignedHead], SignedHead | None]) -> Log:
    def each(body: ev.EventBody) -> ev.EventBody | None:
        if not isinstance(body, ev.AuditHeadSigned):
            return body
        head = change(body.head)
        return replace(body, head=head) if head is not None else None

    return changed(log, each)


async def test_every_run_is_signed_at_its_end_and_what_was_lost_at_the_executions(recorded: Recorded) -> None:
    told = verdicts(recorded.first, recorded.keys)
    assert {one.agent_id for one in told} >= {VICTIM, "agent-dev-2"}
    assert all(one.intact and one.signing is Signing.WHOLE and one.signed_entries == one.entries for one in told)
    assert {one.key_id for one in told} == set(recorded.keys.keys)
    bodies = [stored.event.body for stored in recorded.second]
    kinds = [type(body) for body in bodies]
    # At the end of each run, and not only when all is over.
    assert kinds.index(ev.AuditHeadSigned) < kinds.index(ev.CandidateSubmitted) < kinds.index(ev.ExecutionFinished)
    assert kinds.count(ev.AuditHeadSigned) == len(verdicts(recorded.second, None))


async def test_a_log_rewritten_as_a_whole_is_noticed(recorded: Recorded) -> None:
    forged = rewritten(recorded.first, VICTIM)
    assert forged != recorded.first
    assert faults(forged, recorded.keys) == {VICTIM: "it is not the entry that was signed"}


async def test_control_without_signatures_it_is_not() -> None:
    unsigned, _ = await recorded_by(None)
    forged = rewritten(unsigned, VICTIM)
    assert forged != unsigned
    assert faults(forged, PublicKeys()) == {}
    assert {one.signing for one in verdicts(unsigned, PublicKeys())} == {Signing.NONE}


async def test_entries_taken_from_the_end_with_what_recorded_them(recorded: Recorded) -> None:
    recorders = ev.ToolFinished | ev.RunFinished | ev.CandidateSubmitted
    left = [
        one
        for one in recorded.first
        if not (one.event.agent_id in (VICTIM, "_") and isinstance(one.event.body, recorders))
    ]
    first_call = next(
        one for one in left if one.event.agent_id == VICTIM and isinstance(one.event.body, ev.ToolStarted)
    )
    kept = [one for one in left if one.event.agent_id != VICTIM or one.sequence <= first_call.sequence]
    assert faults(kept, None) == {}
    assert faults(kept, recorded.keys) == {VICTIM: "entries up to 6 were signed, and are gone"}
    # Nor does a chain go as a whole, as long as its signature is there.
    nothing = [stored for stored in kept if stored.event.agent_id != VICTIM]
    assert faults(nothing, recorded.keys) == {VICTIM: "entries up to 6 were signed, and are gone"}


async def test_a_signature_of_another_execution_agent_or_length_counts_for_nothing(recorded: Recorded) -> None:
    others = {
        stored.event.body.head.agent_id: stored.event.body.head
        for stored in recorded.second
        if isinstance(stored.event.body, ev.AuditHeadSigned)
    }
    moved = with_heads(recorded.first, lambda head: others.get(head.agent_id, head))
    assert set(faults(moved, recorded.keys)) == set(others) & {one.agent_id for one in verdicts(moved, None)}
    swapped = with_heads(recorded.second, lambda head: replace(others["agent-dev-2"], agent_id=head.agent_id))
    assert VICTIM in faults(swapped, recorded.keys) and "agent-dev-2" not in faults(swapped, recorded.keys)
    for change in ({"run": 2}, {"entries": 1}, {"entries": -1}, {"hash": "0" * 64}, {"signature": "zz"}):
        assert faults(with_heads(recorded.second, lambda head: replace(head, **change)), recorded.keys), change  # noqa: B023


async def test_a_signature_by_another_key_counts_for_nothing(recorded: Recorded) -> None:
    mine = signing_key(new_key_pem())
    execution_id = recorded.first[0].event.execution_id
    forged = rewritten(recorded.first, VICTIM)
    heads = {one.agent_id: one for one in verdicts(forged, None)}
    signed = with_heads(
        forged, lambda head: mine.signed(replace(head, hash=heads[head.agent_id].head or GENESIS), execution_id)
    )
    assert all("not trusted here" in why for why in faults(signed, recorded.keys).values())
    assert VICTIM in faults(signed, recorded.keys)
    # Under the name of the key that counts, too.
    (known,) = recorded.keys.keys
    named = with_heads(signed, lambda head: replace(head, key_id=known))
    assert faults(named, recorded.keys)[VICTIM] == f"the signature by the key {known} does not match this head"
    # Control: whoever trusts that key is told nothing.
    assert faults(signed, PublicKeys.of([mine.public])) == {}


async def test_signatures_taken_away_are_missed_by_who_asks_for_them(recorded: Recorded) -> None:
    bare = with_heads(rewritten(recorded.first, VICTIM), lambda _: None)
    told = verdicts(bare, recorded.keys)
    assert {one.signing for one in told} == {Signing.NONE} and all(one.intact for one in told)
    assert not any(one.intact for one in signed_throughout(told))
    assert signed_throughout(verdicts(recorded.first, recorded.keys)) == verdicts(recorded.first, recorded.keys)


async def test_what_an_agent_says_was_signed_is_not_heard(recorded: Recorded) -> None:
    """An agent's host writes on its own subject alone; there it can neither sign nor spoil."""
    last = recorded.first[-1]
    head = SignedHead(agent_id="agent-dev-2", run=1, entries=1, hash="0" * 64, key_id="00" * 8, signature="00" * 64)
    forged = ev.StoredEvent(
        sequence=last.sequence + 1, event=replace(last.event, agent_id=VICTIM, body=ev.AuditHeadSigned(head=head))
    )
    assert verdicts([*recorded.first, forged], recorded.keys) == verdicts(recorded.first, recorded.keys)


async def test_an_exported_document_proves_itself_with_the_public_key_alone(recorded: Recorded) -> None:
    execution_id = recorded.first[0].event.execution_id
    document = json.loads(json.dumps(to_plain(audit_document(execution_id, recorded.first))))
    whole = read_audit_document(json.dumps(document).encode())
    assert signed_throughout(whole.verdicts(recorded.keys)) == verdicts(recorded.first, recorded.keys)
    forged = to_plain(audit_document(execution_id, rewritten(recorded.first, VICTIM)))
    read = read_audit_document(json.dumps(forged).encode())
    assert all(one.intact for one in read.verdicts(None))
    assert [one.agent_id for one in read.verdicts(recorded.keys) if not one.intact] == [VICTIM]
    elsewhere = read_audit_document(json.dumps({**document, "execution_id": "another"}).encode())
    assert not any(one.intact for one in elsewhere.verdicts(recorded.keys))
    for damaged in (b"", b"[]", b"{}", b"[" * 100_000, json.dumps({**document, "chains": [1]}).encode()):
        with pytest.raises(FleetError):
            read_audit_document(damaged)


def test_the_private_key_leaves_the_orchestrator_in_no_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = new_key_pem()
    monkeypatch.setenv("FLEET_AUDIT_SIGNING_KEY", text)
    given = Settings(home=tmp_path)
    assert given.audit_signing_key == text
    # Hosts on Ray are not made with it, and here it goes from the environment.
    assert text not in RayFleet(settings=given).host_settings()
    assert text in given.secrets
    assert keyless(given).audit_signing_key == ""
    assert "FLEET_AUDIT_SIGNING_KEY" not in os.environ
    started = subprocess.run(["env"], capture_output=True, text=True, check=True)
    assert "SIGNING_KEY" not in started.stdout and "PRIVATE KEY" not in started.stdout


def test_keys_of_the_home_are_made_once_and_earlier_ones_go_on_counting(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    first, again = open_audit_keys(settings), open_audit_keys(settings)
    own = tmp_path / "audit/signing-key.pem"
    assert own.stat().st_mode & 0o777 == 0o600
    assert first.signing.public == again.signing.public and len(again.public.keys) == 1
    own.unlink()
    rotated = open_audit_keys(settings)
    assert rotated.signing.public != first.signing.public
    head = SignedHead(agent_id="a", run=1, entries=0, hash=GENESIS)
    assert rotated.public.fault(first.signing.signed(head, "e"), "e") == ""
    assert rotated.public.fault(rotated.signing.signed(head, "e"), "e") == ""
    own.chmod(0o644)
    with pytest.raises(FleetError) as refused:
        open_audit_keys(settings)
    assert refused.value.field == "audit_signing_key"
    given = open_audit_keys(settings.model_copy(update={"audit_signing_key": new_key_pem()}))
    assert len(given.public.keys) == 3


def test_what_is_no_key_is_refused_and_not_repeated() -> None:
    for text in ("", "x", "AAAA", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----"):
        with pytest.raises(FleetError) as refused:
            signing_key(text)
        assert refused.value.field == "audit_signing_key"
        assert not text or text not in str(refused.value)


@pytest.fixture
async def solved(fleet: FleetUnderTest, warm: str, tmp_path: Path) -> tuple[Shell, str]:
    """A real execution on a real fleet, and a command line beside it."""
    repository = make_repository(tmp_path / "repository", HELLO_FILES)
    shell = Shell(home=fleet.settings.home, directory=repository, warm=warm)
    ran = await shell.fleet("run", "--json", "--repo", str(repository), "--agents", "2", HELLO)
    return shell, ran.document["execution_id"]


@pytest.mark.slow  # quick: the other cases
async def test_over_the_wire_and_offline(fleet: FleetUnderTest, solved: tuple[Shell, str], tmp_path: Path) -> None:
    shell, name = solved
    public, exported = fleet.settings.home / "audit/public-keys.pem", tmp_path / "audit.json"
    verified = await shell.fleet("audit", "verify", "--json", name)
    chains = verified.document["chains"]
    assert verified.code == 0 and {one["signing"] for one in chains} == {"whole"} and len(chains) >= 2
    assert (await shell.fleet("audit", "verify", "--public-key", str(public), name)).code == 0
    assert (await shell.fleet("export", "--format", "audit", "-o", str(exported), name)).code == 0
    # No fleet is asked: this home has none.
    alone = replace(shell, home=tmp_path / "alone")
    offline = await alone.fleet("audit", "verify", "--json", "--public-key", str(public), str(exported))
    assert (offline.code, offline.document["intact"]) == (0, True)

    document = json.loads(exported.read_text())
    victim = next(one for one in document["chains"] if one["entries"])
    previous = GENESIS
    for number, plain in enumerate(victim["entries"]):
        entry = replace(read_entry(plain), arguments={"path": "harmless.py"}).sealed(previous)
        victim["entries"][number], previous = to_plain(entry), entry.hash
    victim["recorded_heads"] = [previous for _ in victim["recorded_heads"]]
    exported.write_text(json.dumps(document))
    forged = await alone.fleet("audit", "verify", "--json", "--public-key", str(public), str(exported))
    assert forged.code == 1
    assert [one["agent_id"] for one in forged.document["chains"] if not one["intact"]] == [victim["agent_id"]]
    # Control: without the key nobody notices.
    assert (await alone.fleet("audit", "verify", str(exported))).code == 0
    strange = tmp_path / "strange.pem"
    strange.write_text(PublicKeys.of([signing_key(new_key_pem()).public]).pem())
    assert (await shell.fleet("audit", "verify", "--public-key", str(strange), name)).code == 1


def read_entry(plain: dict[str, object]) -> AuditEntry:
    return from_plain(AuditEntry, plain)

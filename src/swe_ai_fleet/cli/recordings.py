"""`fleet export`, `fleet replay`, `fleet audit verify`: export, repeat and verify the runs of agents.

Audit chains are recomputed from the log of a fleet or from a file; a report says who signed them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from swe_ai_fleet.cli import options
from swe_ai_fleet.cli.client import FleetClient
from swe_ai_fleet.cli.executions import audit_table
from swe_ai_fleet.cli.options import Execution, argument, option
from swe_ai_fleet.cli.place import fleet_client
from swe_ai_fleet.cli.screen import CommandFault, Exit, Screen
from swe_ai_fleet.codec import from_json, to_plain
from swe_ai_fleet.domain.audit_chains import ChainVerdict, signed_throughout
from swe_ai_fleet.domain.event import Event, StoredEvent
from swe_ai_fleet.domain.execution import ExecutionState, fold
from swe_ai_fleet.domain.json_values import json_object, mapping, string
from swe_ai_fleet.domain.message import SampledTokens
from swe_ai_fleet.domain.run import RunState
from swe_ai_fleet.domain.text import counted
from swe_ai_fleet.runtime.audit_keys import PublicKeys, public_keys
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.watching.events import (
    audit_document,
    read_audit_document,
    report,
    stored_event,
    verify_events,
)
from swe_ai_fleet.watching.text import one_line

if TYPE_CHECKING:
    from swe_ai_fleet.runtime.replay import Replay

FORMATS = ("atif", "openai", "markdown", "patch", "audit")
_SHOWN_CHARS = 400


async def export(
    screen: Screen,
    client: FleetClient,
    name: Execution,
    *,
    kind: Annotated[
        str,
        option(
            "atif (a trajectory), openai, markdown, patch or audit (all agents' audit chains).",
            words="--format",
            metavar="FORMAT",
        ),
    ] = "atif",
    agent: Annotated[str, option("The agent, or the candidate. Default: the winner's.")] = "",
    batch: Annotated[
        bool, option("ID is a batch's file of results, or a study's folder; writes a trajectory for each candidate.")
    ] = False,
    output: options.Output = None,
) -> Exit:
    """Write one agent's run in a common format, or a candidate's patch.

    Without an agent it is the winner's; without a winner the patch is the best candidate's, the run the first agent's.
    `audit` has the chains of all agents, with their signatures.
    """
    if batch and (agent or kind != "atif"):
        message = "--batch writes every candidate, and as atif"
        raise CommandFault(message, field="agent" if agent else "kind")
    if batch:
        return await _export_batch(screen, client, Path(name), output)
    if kind not in FORMATS:
        raise CommandFault(f"unknown format {kind!r}", hint=f"one of {', '.join(FORMATS)}")
    if kind == "audit":
        answer = await client.execution_reply(await client.find(name))
        recorded = [stored async for event in client.recorded(answer.execution) if (stored := stored_event(event))]
        keys = PublicKeys.of(key.public_key for key in answer.audit_keys)
        document = audit_document(answer.execution.execution_id, recorded, keys.pem())
        return await _write(screen, _json(to_plain(document)), output)
    # Imported here, as below: loading agents and tools takes longer than verifying an audit chain.
    from swe_ai_fleet.agents.exports import markdown, whole_run
    from swe_ai_fleet.agents.function_calling.conversation import write_conversation

    events, state = await _recorded(client, name)
    if kind == "patch":
        content = await _patch(client, state, agent)
        return await _write(screen, content, output)
    agent = _agent(state, agent)
    run = whole_run((stored.event for stored in events), agent)
    match kind:
        case "markdown":
            content = markdown(run).encode()
        case "openai":
            content = _json(write_conversation(run.messages))
        case _:
            content = _json(await _trajectory(client, state, run, [stored.event for stored in events]))
    return await _write(screen, content, output)


async def _export_batch(screen: Screen, client: FleetClient, path: Path, output: Path | None) -> Exit:
    """Every candidate of a batch, or of a study's batches, as a line of JSON: its group, rank, verdict, trajectory.

    `path` is a file of results, or a folder of them. The candidates of one record are a group, over all repeats.
    """
    results = await asyncio.to_thread(_results, path)
    with output.open("wb") if output is not None else nullcontext() as file:
        size = 0
        async for line in _batch_lines(client, results):
            size += len(line)
            if file is None:
                screen.content(line)
            else:
                await asyncio.to_thread(file.write, line)
    if output is not None:
        screen.note(f"{size} bytes written to {output}")
    return Exit.ACCEPTED


async def _batch_lines(client: FleetClient, results: Sequence[tuple[str, str]]) -> AsyncIterator[bytes]:
    from swe_ai_fleet.agents.exports import whole_run

    for group, execution_id in results:
        events, state = await _recorded(client, execution_id)
        execution_events = [stored.event for stored in events]
        for candidate in state.candidates.values():
            run = whole_run(execution_events, candidate.agent_id)
            document = await _trajectory(client, state, run, execution_events)
            judged = mapping(document.get("extra"))
            fields = {field: judged.get(field) for field in ("candidate_id", "winner", "rank", "verdict", "reward")}
            line = {"group": group, "execution_id": execution_id, **fields, "trajectory": document}
            yield json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


async def _trajectory(
    client: FleetClient, state: ExecutionState, run: RunState, events: Sequence[Event]
) -> dict[str, object]:
    from swe_ai_fleet.agents.exports import token_refs, trajectory

    tokens = {
        ref.digest: from_json(SampledTokens, await client.artifact(state.execution_id, ref.digest))
        for ref in token_refs(run, events)
    }
    return trajectory(state, run, events, tokens)


def _results(path: Path) -> list[tuple[str, str]]:
    """The (record, execution) pairs in results, each execution once. Raises CommandFault."""
    named: dict[str, str] = {}
    try:
        files = sorted(path.glob("*.results.jsonl")) if path.is_dir() else [path]
        for file in files:
            for line in file.read_bytes().splitlines():
                row = json_object(line)
                if execution_id := string(row.get("execution_id")):
                    named[execution_id] = string(row.get("instance_id"))
    except OSError as error:
        raise CommandFault(f"{path} cannot be read: {error.strerror}", field="name") from None
    if not named:
        hint = "a batch writes FILE.results.jsonl beside its file, a study a folder of them"
        raise CommandFault(f"{path} names no execution", field="name", hint=hint)
    return [(group, execution_id) for execution_id, group in named.items()]


async def _patch(client: FleetClient, state: ExecutionState, name: str) -> bytes:
    """A candidate's patch. Raises CommandFault."""
    name = name or state.winner_id or (state.ranking[0].candidate_id if state.ranking else "")
    candidate = state.candidates.get(name)
    if candidate is None and name not in state.agents:
        candidate_ids = ", ".join(sorted(state.candidates)) or "there is none"
        raise CommandFault(f"no candidate {name[:64]!r}", field="agent", hint=candidate_ids)
    if candidate is None or candidate.artifacts.patch is None:
        raise CommandFault(f"{name} submitted no patch")
    return await client.artifact(state.execution_id, candidate.artifacts.patch.digest)


async def _write(screen: Screen, content: bytes, output: Path | None) -> Exit:
    if output is not None:
        await asyncio.to_thread(output.write_bytes, content)
        screen.note(f"{len(content)} bytes written to {output}")
    else:
        screen.content(content)
    return Exit.ACCEPTED


async def replay(
    screen: Screen,
    settings: Settings,
    name: Execution,
    *,
    agent: Annotated[str, option("The agent. Default: the winner's.")] = "",
    fork_at: Annotated[
        int | None, option("Continue with a model server after N recorded replies.", min=0, metavar="N")
    ] = None,
    model: Annotated[str, option("With --fork-at: the model. Default: FLEET_MODEL.")] = "",
    prompt: Annotated[
        Path | None,
        option("With --fork-at: replaces the system message.", exists=True, dir_okay=False, metavar="FILE"),
    ] = None,
    server: options.Server = "",
    token: options.Token = "",
) -> Exit:
    """Repeat a run in a local clone. Exit code 1 where it differs from the recording."""
    if (model or prompt) and fork_at is None:
        raise CommandFault("without --fork-at no model is asked", field="fork_at")
    if model:
        settings = settings.model_copy(update={"model": model})
    text = prompt.read_text(encoding="utf-8", errors="replace") if prompt is not None else ""
    from swe_ai_fleet.agents.exports import whole_run
    from swe_ai_fleet.runtime.replay import replay as repeat_run

    async with fleet_client(settings, server=server, token=token) as client:
        events, state = await _recorded(client, name)
    agent = _agent(state, agent)
    run = whole_run((stored.event for stored in events), agent)
    done = await repeat_run(settings, state, run, fork_at=fork_at, prompt=text)
    if screen.json:
        screen.document(_document(run, done))
    else:
        _print_replay(screen, run, done)
    return Exit.ACCEPTED if done.same else Exit.NOT_ACCEPTED


async def _recorded(client: FleetClient, name: str) -> tuple[list[StoredEvent], ExecutionState]:
    execution = await client.execution(await client.find(name))
    events = [stored async for event in client.recorded(execution) if (stored := stored_event(event)) is not None]
    state = fold(events)
    if state is None:
        raise CommandFault("the log of this execution has no beginning", exit_code=Exit.NOT_ACCEPTED)
    return events, state


def _agent(state: ExecutionState, agent: str) -> str:
    if not agent:
        agent = state.winner_id or next(iter(sorted(state.agents)), "")
    if agent not in state.agents:
        agent_ids = ", ".join(sorted(state.agents)) or "none has begun"
        raise CommandFault(f"no agent {agent!r} in this execution", field="agent", hint=agent_ids)
    return agent


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace")


def _document(run: RunState, done: Replay) -> dict[str, object]:
    return {
        "agent_id": run.agent_id,
        "same": done.same,
        "forked_at": done.forked_at,
        "steps": len(done.trajectory.steps),
        "recorded_steps": len(run.steps),
        "stop_reason": str(done.trajectory.stop_reason),
        "recorded_stop_reason": str(run.finished.stop_reason) if run.finished else "",
        "differences": [to_plain(difference) for difference in done.differences],
        "answer": done.trajectory.answer,
        "error": done.trajectory.error,
        "diff": done.diff.patch.decode("utf-8", "replace"),
    }


def _print_replay(screen: Screen, run: RunState, done: Replay) -> None:
    forked = f", forked after step {done.forked_at}" if done.forked_at is not None else ""
    screen.line(f"{run.agent_id}: {len(done.trajectory.steps)} of {len(run.steps)} recorded steps{forked}")
    for difference in done.differences:
        screen.line(f"step {difference.step}, {difference.operation}: not as recorded")
        screen.line(f"  recorded: {one_line(difference.recorded)[:_SHOWN_CHARS]}")
        screen.line(f"  now:      {one_line(difference.seen)[:_SHOWN_CHARS]}")
    screen.line(f"ended: {done.trajectory.stop_reason}; {counted(len(done.diff.files), 'file')} changed")
    screen.line("as recorded" if done.same else "not as recorded")
    if done.forked_at is not None and done.trajectory.answer:
        screen.line(one_line(done.trajectory.answer)[:_SHOWN_CHARS])


async def verify(
    screen: Screen,
    settings: Settings,
    name: Annotated[
        str,
        argument(
            "An execution id, a task id, a document of `fleet export --format audit` (.json), or an audit file of "
            "`fleet tools run` (.jsonl).",
            "execution_id",
            metavar="ID|FILE",
        ),
    ],
    *,
    public_key: Annotated[
        Path | None,
        option(
            "PEM file of the trusted public keys; requires signatures on everything. Default: the fleet's keys.",
            metavar="FILE",
        ),
    ] = None,
    head: Annotated[str, option("The required hash of a file's last entry.", metavar="HASH")] = "",
    server: options.Server = "",
    token: options.Token = "",
) -> Exit:
    if name.endswith(".jsonl"):
        from swe_ai_fleet.cli.tools import verify_audit_file

        if public_key is not None:
            message = "what `fleet tools run` records is not signed"
            raise CommandFault(message, field="public_key")
        return await verify_audit_file(screen, Path(name), head=head)
    if name.endswith(".json"):
        try:
            document = read_audit_document(await asyncio.to_thread(Path(name).read_bytes))
        except OSError as error:
            raise CommandFault(f"{name} cannot be read: {error.strerror}") from None
        verdicts = document.verdicts(_given_keys(public_key))
        about = {"file": name, "execution_id": document.execution_id}
        return _print_verdicts(screen, about, verdicts if public_key is None else signed_throughout(verdicts))
    async with fleet_client(settings, server=server, token=token) as client:
        return await _verify_log(screen, client, name, public_key=public_key)


async def _verify_log(screen: Screen, client: FleetClient, name: str, *, public_key: Path | None) -> Exit:
    """Recompute the audit chain of every agent of an execution from its log.

    With `public_key` its keys are trusted, and everything has to be signed; without it the fleet's keys are trusted,
    and unsigned parts are reported.
    """
    execution_id = await client.find(name)
    try:
        answer = await client.execution_reply(execution_id)
    except CommandFault as fault:
        # Of an erased execution one event is left, and the fleet gives no keys for it.
        events = [event async for event in client.events(execution_id)] if fault.field == "execution_id" else []
        if not events:
            raise
        keys = _given_keys(public_key)
    else:
        fleet_keys = PublicKeys.of(key.public_key for key in answer.audit_keys)
        keys = _given_keys(public_key) or (fleet_keys if fleet_keys.keys else None)
        events = [event async for event in client.recorded(answer.execution)]
    verdicts = verify_events(events, keys)
    about = {"execution_id": execution_id}
    return _print_verdicts(screen, about, verdicts if public_key is None else signed_throughout(verdicts))


def _given_keys(path: Path | None) -> PublicKeys | None:
    return public_keys(path, setting="public_key") if path is not None else None


def _print_verdicts(screen: Screen, about: Mapping[str, object], verdicts: Sequence[ChainVerdict]) -> Exit:
    if screen.json:
        screen.document({**about, **report(verdicts)})
    elif verdicts:
        screen.out.print(audit_table(verdicts))
    else:
        screen.line("no agent has recorded anything")
    return Exit.ACCEPTED if all(verdict.intact for verdict in verdicts) else Exit.NOT_ACCEPTED

"""The commands about executions that are more than one request: run, watched, shown, exported, replayed, verified."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from swe_ai_fleet.cli import options
from swe_ai_fleet.cli.client import Fleet, FleetClient
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.options import Execution, argument, option
from swe_ai_fleet.cli.order import Order
from swe_ai_fleet.cli.place import fleet_client
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.settings import Settings


async def run(screen: Screen, fleet: Fleet, order: Order) -> Exit:
    from swe_ai_fleet.cli.run import run as work

    return await work(screen, fleet, order)


async def watch(
    screen: Screen,
    client: FleetClient,
    name: Execution,
    *,
    text: Annotated[bool, option("Also what the models say, while they say it.")] = False,
) -> Exit:
    from swe_ai_fleet.cli.run import watch as work

    return await work(screen, client, name, text=text)


async def show(screen: Screen, client: FleetClient, name: Execution) -> Exit:
    from swe_ai_fleet.cli.outcome import current_state, show_outcome

    execution = await client.execution(await client.find(name))
    await show_outcome(screen, client, await current_state(client, execution))
    # It is about the command; the document has the execution's own.
    return Exit.ACCEPTED


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
    agent: Annotated[str, option("Whose run, or which candidate. Default: the winner's.")] = "",
    batch: Annotated[
        bool, option("ID is a batch's file of results, or a study's folder: a trajectory a line for each candidate.")
    ] = False,
    output: options.Output = None,
) -> Exit:
    from swe_ai_fleet.cli.recordings import export as work
    from swe_ai_fleet.cli.recordings import export_batch

    if batch:
        if agent or kind != "atif":
            raise CommandFault(
                "--batch writes every candidate, and as atif", exit_code=Exit.USAGE, field="agent" if agent else "kind"
            )
        return await export_batch(screen, client, Path(name), output)
    return await work(screen, client, name, kind=kind, agent=agent, output=output)


async def replay(
    screen: Screen,
    settings: Settings,
    name: Execution,
    *,
    agent: Annotated[str, option("Whose run. Default: the winner's.")] = "",
    fork_at: Annotated[
        int | None, option("After N recorded replies a model server goes on.", min=0, metavar="N")
    ] = None,
    model: Annotated[str, option("With --fork-at: the model that goes on. Default: FLEET_MODEL.")] = "",
    prompt: Annotated[
        Path | None,
        option("With --fork-at: stands in place of the system message.", exists=True, dir_okay=False, metavar="FILE"),
    ] = None,
    server: options.Server = "",
    token: options.Token = "",
) -> Exit:
    from swe_ai_fleet.cli.recordings import run_again

    if (model or prompt) and fork_at is None:
        raise CommandFault("without --fork-at no model is asked", exit_code=Exit.USAGE, field="fork_at")
    chosen = settings.model_copy(update={"model": model}) if model else settings
    text = prompt.read_text(encoding="utf-8", errors="replace") if prompt is not None else ""
    fleet = fleet_client(settings, server=server, token=token)
    return await run_again(screen, fleet, chosen, name, agent=agent, fork_at=fork_at, prompt=text)


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
            "PEM file of the public keys that count; everything has to be signed then. Default: those that the "
            "fleet vouches for.",
            metavar="FILE",
        ),
    ] = None,
    head: Annotated[str, option("Of a file: what its last entry's hash must be.", metavar="HASH")] = "",
    server: options.Server = "",
    token: options.Token = "",
) -> Exit:
    if name.endswith(".jsonl"):
        from swe_ai_fleet.cli.tools import verify_audit_file

        if public_key is not None:
            message = "what `fleet tools run` records is not signed"
            raise CommandFault(message, exit_code=Exit.USAGE, field="public_key")
        return await verify_audit_file(screen, Path(name), head=head)
    from swe_ai_fleet.cli.recordings import verify_audit, verify_audit_document

    if name.endswith(".json"):
        return await verify_audit_document(screen, Path(name), public_key=public_key)
    async with fleet_client(settings, server=server, token=token) as client:
        return await verify_audit(screen, client, name, public_key=public_key)

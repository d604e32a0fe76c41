"""The options of the commands about executions: watched, listed, shown, decided about, exported, verified."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from swe_ai_fleet.cli.edge import carry_out, carry_out_with
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.options import Execution, Json, Server, Token
from swe_ai_fleet.cli.place import fleet_client
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.settings import Settings


def watch(
    name: Execution,
    *,
    text: Annotated[bool, typer.Option("--text", help="Also what the models say, while they say it.")] = False,
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Show an execution as it happens; with --json a line for each event."""
    from swe_ai_fleet.cli.run import watch as work

    carry_out_with(
        fleet_client,
        lambda screen, client: work(screen, client, name, text=text),
        server=server,
        token=token,
        json=json,
    )


def list_executions(
    *,
    task_id: Annotated[str, typer.Option(help="Only this task's.")] = "",
    status: Annotated[list[str] | None, typer.Option(help="Only those with this status; may be repeated.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="At most so many, the newest.")] = 50,
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """List executions, the newest first."""
    from swe_ai_fleet.cli.executions import show_list

    carry_out_with(
        fleet_client,
        lambda screen, client: show_list(
            screen,
            client,
            task_id=task_id,
            statuses=status or (),
            limit=limit,
        ),
        server=server,
        token=token,
        json=json,
    )


def show(name: Execution, *, server: Server = "", token: Token = "", json: Json = False) -> None:
    """Show an execution as it stands: verdict, candidates, evidence, diff, branch."""
    from swe_ai_fleet.cli.executions import show_one

    carry_out_with(
        fleet_client, lambda screen, client: show_one(screen, client, name), server=server, token=token, json=json
    )


def cancel(
    name: Execution,
    *,
    reason: Annotated[str, typer.Option(help="Why, for the log.")] = "cancelled from the command line",
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Stop an execution's agents and their processes."""
    from swe_ai_fleet.cli.executions import cancel as work

    carry_out_with(
        fleet_client,
        lambda screen, client: work(screen, client, name, reason=reason),
        server=server,
        token=token,
        json=json,
    )


def export(
    name: Execution,
    *,
    kind: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="trajectory, openai, markdown, patch or audit (all agents' audit chains).",
        ),
    ] = "trajectory",
    agent: Annotated[str, typer.Option(help="Whose run, or which candidate. Default: the winner's.")] = "",
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Default: print it.")] = None,
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Write an agent's run as a trajectory, as OpenAI messages, as Markdown, or its patch; or all agents' audit."""
    from swe_ai_fleet.cli.recordings import export as work

    carry_out_with(
        fleet_client,
        lambda screen, client: work(screen, client, name, kind=kind, agent=agent, output=output),
        server=server,
        token=token,
        json=json,
    )


def replay(
    name: Execution,
    *,
    agent: Annotated[str, typer.Option(help="Whose run. Default: the winner's.")] = "",
    fork_at: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="After N recorded replies a model server goes on.")
    ] = None,
    model: Annotated[str, typer.Option(help="With --fork-at: the model that goes on. Default: FLEET_MODEL.")] = "",
    prompt: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, metavar="FILE", help="With --fork-at: stands in place of the system message."
        ),
    ] = None,
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Carry an agent's run out again here, against its recorded replies; exit code 1 where it goes another way."""
    from swe_ai_fleet.cli.recordings import run_again

    def work(screen: Screen, settings: Settings) -> Coroutine[Any, Any, Exit]:
        if (model or prompt) and fork_at is None:
            raise CommandFault("without --fork-at no model is asked", exit_code=Exit.USAGE, field="fork_at")
        chosen = settings.model_copy(update={"model": model}) if model else settings
        text = prompt.read_text(encoding="utf-8", errors="replace") if prompt is not None else ""
        fleet = fleet_client(settings, server=server, token=token)
        return run_again(screen, fleet, chosen, name, agent=agent, fork_at=fork_at, prompt=text)

    carry_out(work, json=json)


def _deciding(decision: str, about: str) -> Callable[..., None]:
    """The command that answers an approval in this way."""

    def command(
        name: Execution,
        *,
        approval: Annotated[str, typer.Option(metavar="APPROVAL", help="Which one, where several wait.")] = "",
        text: Annotated[str, typer.Option(help="What to tell the agent.")] = "",
        approver: Annotated[
            str, typer.Option("--as", metavar="NAME", help="Who decides, for the log. Default: you.")
        ] = "",
        server: Server = "",
        token: Token = "",
        json: Json = False,
    ) -> None:
        from swe_ai_fleet.cli.approvals import resolve

        carry_out_with(
            fleet_client,
            lambda screen, client: resolve(
                screen, client, name, decision, approval=approval, text=text, approver=approver
            ),
            server=server,
            token=token,
            json=json,
        )

    command.__doc__ = about
    return command


approve = _deciding("approved", "Let an agent do what it asked for.")
reject = _deciding("rejected", "Refuse what an agent asked for; a refused plan ends its run.")
adjust = _deciding("adjusted", "Have an agent propose again, with --text taken into account.")


def verify(
    name: Annotated[
        str,
        typer.Argument(
            metavar="ID|FILE",
            help="An execution id, a task id, a document of `fleet export --format audit` (.json), or an audit file of "
            "`fleet tools run` (.jsonl).",
        ),
    ],
    *,
    public_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="PEM file of the public keys that count; everything has to be signed then. Default: those that the "
            "fleet vouches for.",
        ),
    ] = None,
    head: Annotated[str, typer.Option(metavar="HASH", help="Of a file: what its last entry's hash must be.")] = "",
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Recompute every agent's audit chain from the log, or those of a file; exit code 1 where one does not fit."""
    if name.endswith(".jsonl"):
        from swe_ai_fleet.cli.tools import verify_audit_file

        if public_key is not None:
            raise typer.BadParameter("what `fleet tools run` records is not signed", param_hint="--public-key")
        carry_out(lambda screen, _: verify_audit_file(screen, Path(name), head=head), json=json)
    from swe_ai_fleet.cli.auditing import verify_audit, verify_audit_document

    if name.endswith(".json"):
        carry_out(lambda screen, _: verify_audit_document(screen, Path(name), public_key=public_key), json=json)
    carry_out_with(
        fleet_client,
        lambda screen, client: verify_audit(screen, client, name, public_key=public_key),
        server=server,
        token=token,
        json=json,
    )

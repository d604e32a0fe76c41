"""The `fleet` command."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from swe_ai_fleet.cli.access import access_app
from swe_ai_fleet.cli.backup.command import backup, restore
from swe_ai_fleet.cli.batch.command import batch
from swe_ai_fleet.cli.chat import chat
from swe_ai_fleet.cli.context import context_app
from swe_ai_fleet.cli.context_change import change
from swe_ai_fleet.cli.councils import councils_app
from swe_ai_fleet.cli.dead_letters import dlq_app
from swe_ai_fleet.cli.edge import carry_out
from swe_ai_fleet.cli.examples import add_examples, top
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.figures import metrics
from swe_ai_fleet.cli.fleet_status import status
from swe_ai_fleet.cli.init import init
from swe_ai_fleet.cli.learning import rate, recommend
from swe_ai_fleet.cli.memory import memory_app
from swe_ai_fleet.cli.options import Json, Server, Token
from swe_ai_fleet.cli.place import fleet_client
from swe_ai_fleet.cli.plan import plan_app
from swe_ai_fleet.cli.run_command import run
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.cli.study.command import study
from swe_ai_fleet.cli.webhooks import webhooks_app
from swe_ai_fleet.cli.workflow import workflow_app
from swe_ai_fleet.settings import Settings

app = typer.Typer(
    name="fleet",
    help="Several coding agents solve a task in parallel; evidence picks the winner; every step is audited.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog=top(),
)
audit_app = typer.Typer(help="What the agents did, proven.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(audit_app, name="audit")
tools_app = typer.Typer(
    help="What agents can do, and one such operation by hand.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(tools_app, name="tools")
app.add_typer(councils_app, name="councils")
context_app.command()(change)
app.add_typer(context_app, name="context")
app.add_typer(memory_app, name="memory")
app.add_typer(workflow_app, name="workflow")
app.add_typer(plan_app, name="plan")
app.add_typer(webhooks_app, name="webhooks")
app.add_typer(dlq_app, name="dlq")
app.add_typer(access_app, name="access")
app.command()(status)
app.command()(metrics)

Name = Annotated[str, typer.Argument(metavar="ID", help="An execution id, or a task id for its newest execution.")]


@app.command()
def up(
    *,
    vllm: Annotated[
        str,
        typer.Option("--vllm", metavar="MODEL", help="Serve this model (a name on a hub, a directory) by vLLM, too."),
    ] = "",
    vllm_args: Annotated[
        str, typer.Option("--vllm-args", help="Further arguments of vLLM, such as '--max-model-len 65536'.")
    ] = "",
    vllm_tool_parser: Annotated[
        str,
        typer.Option(
            "--vllm-tool-parser", help="What reads the model's tool calls; by its template or name where left out."
        ),
    ] = "",
    vllm_drain: Annotated[
        int, typer.Option("--vllm-drain", min=0, help="Seconds that running requests get when the fleet stops.")
    ] = 30,
    json: Json = False,
) -> None:
    """Start NATS, Ray and the orchestrator here, until Ctrl-C."""
    from swe_ai_fleet.cli.up import up as work
    from swe_ai_fleet.runtime.vllm_command import VLLMOrder

    order = VLLMOrder(model=vllm, arguments=vllm_args, tool_parser=vllm_tool_parser, drain_seconds=vllm_drain)
    carry_out(lambda screen, settings: work(screen, settings, order if vllm else None), json=json, log_level="")


@app.command("open")
def open_command(
    *,
    browser: Annotated[bool, typer.Option("--browser", help="Open it in a browser too.")] = False,
    json: Json = False,
) -> None:
    """Print the address of the running fleet's page; it lets in whoever opens it."""
    from swe_ai_fleet.cli.web import open_page

    carry_out(lambda screen, settings: open_page(screen, settings, browser=browser), json=json)


@app.command()
def mcp(
    *,
    allow_approve: Annotated[
        bool, typer.Option("--allow-approve", help="Let the client answer approvals, and waive them.")
    ] = False,
    server: Server = "",
    token: Token = "",
) -> None:
    """Serve the fleet as MCP tools over standard input and output, for editors and other agents."""

    async def work(_: Screen, settings: Settings) -> Exit:
        from swe_ai_fleet.cli.mcp.server import serve

        await serve(settings, server=server, token=token, may_approve=allow_approve)
        return Exit.ACCEPTED

    carry_out(work, json=False)


app.command()(run)
app.command()(init)
app.command()(batch)
app.command()(study)
app.command()(chat)


@app.command()
def telegram(*, server: Server = "", token: Token = "") -> None:
    """Serve Telegram chats (FLEET_TELEGRAM_TOKEN, FLEET_TELEGRAM_CHATS) over a running fleet, until Ctrl-C."""
    from swe_ai_fleet.cli.telegram import serve

    carry_out(lambda screen, settings: serve(screen, settings, server=server, token=token), json=False, log_level="")


app.command()(backup)
app.command()(restore)
app.command()(rate)
app.command()(recommend)


@app.command()
def watch(
    name: Name,
    *,
    text: Annotated[bool, typer.Option("--text", help="Also what the models say, while they say it.")] = False,
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Show an execution as it happens; with --json a line for each event."""
    from swe_ai_fleet.cli.run import watch as work

    carry_out(
        lambda screen, settings: work(screen, fleet_client(settings, server=server, token=token), name, text=text),
        json=json,
    )


@app.command("list")
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

    carry_out(
        lambda screen, settings: show_list(
            screen,
            fleet_client(settings, server=server, token=token),
            task_id=task_id,
            statuses=tuple(status or ()),
            limit=limit,
        ),
        json=json,
    )


@app.command()
def show(name: Name, *, server: Server = "", token: Token = "", json: Json = False) -> None:
    """Show an execution as it stands: candidates, evidence, diff, branch."""
    from swe_ai_fleet.cli.executions import show_one

    carry_out(
        lambda screen, settings: show_one(screen, fleet_client(settings, server=server, token=token), name), json=json
    )


@app.command()
def cancel(
    name: Name,
    *,
    reason: Annotated[str, typer.Option(help="Why, for the log.")] = "cancelled from the command line",
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Stop an execution's agents and their processes."""
    from swe_ai_fleet.cli.executions import cancel as work

    carry_out(
        lambda screen, settings: work(screen, fleet_client(settings, server=server, token=token), name, reason=reason),
        json=json,
    )


@app.command()
def export(
    name: Name,
    *,
    kind: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="trajectory, openai, markdown or patch.")
    ] = "trajectory",
    agent: Annotated[str, typer.Option(help="Whose run. Default: the winner's.")] = "",
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Default: print it.")] = None,
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Write an agent's run as a trajectory, as OpenAI messages, as Markdown, or its patch."""
    from swe_ai_fleet.cli.recordings import export as work

    carry_out(
        lambda screen, settings: work(
            screen, fleet_client(settings, server=server, token=token), name, kind=kind, agent=agent, output=output
        ),
        json=json,
    )


@app.command()
def replay(
    name: Name,
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


Approval = Annotated[str, typer.Option(metavar="APPROVAL", help="Which one, where several wait.")]
Words = Annotated[str, typer.Option(help="What to tell the agent.")]
Approver = Annotated[str, typer.Option("--as", metavar="NAME", help="Who decides, for the log. Default: you.")]


@app.command()
def approve(
    name: Name,
    *,
    approval: Approval = "",
    text: Words = "",
    approver: Approver = "",
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Let an agent do what it asked for."""
    _resolve(name, "approved", approval, text, approver, server, token, json=json)


@app.command()
def reject(
    name: Name,
    *,
    approval: Approval = "",
    text: Words = "",
    approver: Approver = "",
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Refuse what an agent asked for; a refused plan ends its run."""
    _resolve(name, "rejected", approval, text, approver, server, token, json=json)


@app.command()
def adjust(
    name: Name,
    *,
    approval: Approval = "",
    text: Words = "",
    approver: Approver = "",
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Have an agent propose again, with --text taken into account."""
    _resolve(name, "adjusted", approval, text, approver, server, token, json=json)


def _resolve(
    name: str, decision: str, approval: str, text: str, approver: str, server: str, token: str, *, json: bool
) -> None:
    from swe_ai_fleet.cli.approvals import resolve
    from swe_ai_fleet.domain.approval import ApprovalDecision

    carry_out(
        lambda screen, settings: resolve(
            screen,
            fleet_client(settings, server=server, token=token),
            name,
            ApprovalDecision(decision),
            approval=approval,
            text=text,
            approver=approver,
        ),
        json=json,
    )


@app.command()
def doctor(*, server: Server = "", token: Token = "", json: Json = False) -> None:
    """Try everything the fleet stands on, and say what is wrong and how to mend it."""
    from swe_ai_fleet.cli.doctor import doctor as work

    carry_out(lambda screen, settings: work(screen, settings, server=server, token=token), json=json)


@audit_app.command()
def verify(
    name: Annotated[
        str,
        typer.Argument(metavar="ID|FILE", help="An execution id, a task id, or an audit file of `fleet tools run`."),
    ],
    *,
    head: Annotated[str, typer.Option(metavar="HASH", help="Of a file: what its last entry's hash must be.")] = "",
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Recompute every agent's audit chain from the log, or that of a file; exit code 1 where one does not fit."""
    if name.endswith(".jsonl"):
        from swe_ai_fleet.cli.tools import verify_audit_file

        carry_out(lambda screen, _: verify_audit_file(screen, Path(name), head=head), json=json)
    from swe_ai_fleet.cli.executions import verify_audit

    carry_out(
        lambda screen, settings: verify_audit(screen, fleet_client(settings, server=server, token=token), name),
        json=json,
    )


@tools_app.command("list")
def list_tools(
    *,
    role: Annotated[str, typer.Option(help="Only what this role gets: DEV, QA, ARCHITECT, DEVOPS or DATA.")] = "",
    read_only: Annotated[bool, typer.Option("--read-only", help="Only what a run without changes gets.")] = False,
    json: Json = False,
) -> None:
    """Show every operation with its traits."""
    from swe_ai_fleet.cli.tools import show_tools

    carry_out(lambda screen, _: show_tools(screen, role=role, read_only=read_only), json=json)


@tools_app.command("run")
def run_tool(
    operation: Annotated[str, typer.Argument(help="Its name, such as files_read_file.")],
    pairs: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Its arguments.")] = None,
    *,
    workspace: Annotated[str, typer.Option(metavar="DIR", help="The directory it works in.")] = ".",
    args: Annotated[str, typer.Option(metavar="JSON", help="Arguments as a JSON object.")] = "",
    role: Annotated[str, typer.Option(help="The role it is called in.")] = "DEV",
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse whatever could change something.")] = False,
    json: Json = False,
) -> None:
    """Run one operation in the sandbox, audited; exit code 1 where it fails or is refused, 2 for wrong arguments."""
    from swe_ai_fleet.cli.tools import run_tool as work

    carry_out(
        lambda screen, settings: work(
            screen,
            settings,
            operation=operation,
            workspace=Path(workspace),
            pairs=tuple(pairs or ()),
            arguments=args,
            role=role,
            read_only=read_only,
        ),
        json=json,
    )


add_examples(app)

if __name__ == "__main__":
    app()

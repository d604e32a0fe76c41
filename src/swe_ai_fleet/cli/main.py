"""The `fleet` command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from swe_ai_fleet.cli.access import access_app
from swe_ai_fleet.cli.backup.command import backup, restore
from swe_ai_fleet.cli.batch.command import batch
from swe_ai_fleet.cli.chat import chat
from swe_ai_fleet.cli.context import context_app
from swe_ai_fleet.cli.councils import councils_app
from swe_ai_fleet.cli.dead_letters import dlq_app
from swe_ai_fleet.cli.edge import carry_out
from swe_ai_fleet.cli.env_commands import env_app
from swe_ai_fleet.cli.examples import add_examples, top
from swe_ai_fleet.cli.execution_commands import (
    adjust,
    approve,
    cancel,
    export,
    list_executions,
    reject,
    replay,
    show,
    verify,
    watch,
)
from swe_ai_fleet.cli.exits import Exit
from swe_ai_fleet.cli.figures import metrics
from swe_ai_fleet.cli.fleet_status import status
from swe_ai_fleet.cli.init import init
from swe_ai_fleet.cli.judge import deliver, judge
from swe_ai_fleet.cli.learning import rate, recommend
from swe_ai_fleet.cli.memory import memory_app
from swe_ai_fleet.cli.options import Json, Server, Token
from swe_ai_fleet.cli.plan import plan_app
from swe_ai_fleet.cli.run_command import run
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.cli.study.command import study
from swe_ai_fleet.cli.tool_commands import tools_app
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


@app.callback()
def _configured(
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File of settings. Default: FLEET_CONFIG, or fleet.toml in FLEET_HOME."),
    ] = None,
) -> None:
    if config is not None:
        os.environ["FLEET_CONFIG"] = str(config)


audit_app = typer.Typer(help="What the agents did, proven.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(audit_app, name="audit")
audit_app.command()(verify)
app.add_typer(tools_app, name="tools")
app.add_typer(env_app, name="env")
app.add_typer(councils_app, name="councils")
app.add_typer(context_app, name="context")
app.add_typer(memory_app, name="memory")
app.add_typer(workflow_app, name="workflow")
app.add_typer(plan_app, name="plan")
app.add_typer(webhooks_app, name="webhooks")
app.add_typer(dlq_app, name="dlq")
app.add_typer(access_app, name="access")
app.command()(status)
app.command()(metrics)


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
app.command()(judge)
app.command()(deliver)
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
app.command()(watch)
app.command("list")(list_executions)
app.command()(show)
app.command()(cancel)
app.command()(export)
app.command()(replay)
app.command("approve")(approve)
app.command("reject")(reject)
app.command("adjust")(adjust)


@app.command()
def doctor(*, server: Server = "", token: Token = "", json: Json = False) -> None:
    """Try everything the fleet stands on, and say what is wrong and how to mend it."""
    from swe_ai_fleet.cli.doctor import doctor as work

    carry_out(lambda screen, settings: work(screen, settings, server=server, token=token), json=json)


add_examples(app)

if __name__ == "__main__":
    app()

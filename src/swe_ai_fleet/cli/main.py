"""The `fleet` command."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from swe_ai_fleet.cli import access, dead_letters, env_commands, execution_commands, tool_commands
from swe_ai_fleet.cli.chat import chat
from swe_ai_fleet.cli.command import Commands
from swe_ai_fleet.cli.edge import run_command
from swe_ai_fleet.cli.examples import EXAMPLES, add_examples, top
from swe_ai_fleet.cli.exits import Exit
from swe_ai_fleet.cli.init import init
from swe_ai_fleet.cli.judge import judge
from swe_ai_fleet.cli.options import Json, Server, Token
from swe_ai_fleet.cli.plan import GoalFirst, goal
from swe_ai_fleet.cli.rows import ROWS
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.extensions import load_parts
from swe_ai_fleet.settings import Settings


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
    run_command(lambda screen, settings: work(screen, settings, order if vllm else None), json=json, log_level="")


async def open_command(
    screen: Screen,
    settings: Settings,
    *,
    browser: Annotated[bool, typer.Option("--browser", help="Open it in a browser too.")] = False,
) -> Exit:
    """Print the address of the running fleet's page; it lets in whoever opens it."""
    from swe_ai_fleet.cli.web import open_page

    return await open_page(screen, settings, browser=browser)


async def doctor(screen: Screen, settings: Settings, *, server: Server = "", token: Token = "") -> Exit:
    """Try everything the fleet stands on, and say what is wrong and how to mend it."""
    from swe_ai_fleet.cli.doctor import doctor as work

    return await work(screen, settings, server=server, token=token)


CODE: Mapping[str, Callable[..., Any]] = {
    "up": up,
    "open": open_command,
    "run": execution_commands.run,
    "judge": judge,
    "init": init,
    "chat": chat,
    "watch": execution_commands.watch,
    "show": execution_commands.show,
    "export": execution_commands.export,
    "replay": execution_commands.replay,
    "doctor": doctor,
    "audit verify": execution_commands.verify,
    "tools list": tool_commands.list_tools,
    "tools run": tool_commands.run_tool,
    "env explain": env_commands.explain,
    "env export": env_commands.export,
    "plan goal": goal,
    "dlq list": dead_letters.list_letters,
    "dlq replay": dead_letters.replay,
    "dlq drop": dead_letters.drop,
    "access check": access.check,
    "access token add": access.add,
    "access token list": access.list_tokens,
    "access token revoke": access.revoke,
}
"""The commands that are more than one request, by their words."""
GROUPS: Mapping[str, str] = {
    "audit": "What the agents did, proven.",
    "tools": "What agents can do, and one such operation by hand.",
    "env": "What a repository's commands find when they run.",
    "councils": "Who solves the tasks of each role.",
    "context": "Stories, their tasks and decisions, and what agents are told of them.",
    "memory": "What agents remember from one run to the next.",
    "plan": 'Plan with a person: `fleet plan "GOAL"` proposes an approach; nothing is done before it is approved.',
    "dlq": "Messages on NATS that could not be handled.",
    "access": "Who may come in: the access file.",
    "access token": "Tokens of people, programs and services.",
}


COMMANDS = Commands(groups=GROUPS, rows=ROWS, code=CODE, examples=EXAMPLES).and_others(load_parts("commands"))
"""Those of the extensions, too."""


def _group(help_: str, **more: Any) -> typer.Typer:
    return typer.Typer(help=help_, no_args_is_help=True, rich_markup_mode=None, **more)


def _app() -> typer.Typer:
    """The command with all that is below it, in the order of the examples."""
    groups = {
        "": _group(
            "Several coding agents solve a task in parallel; evidence picks the winner; every step is audited.",
            name="fleet",
            add_completion=False,
            pretty_exceptions_enable=False,
            epilog=top(),
        )
    }
    groups[""].callback()(_configured)
    for words, about in COMMANDS.groups.items():
        within, _, name = words.rpartition(" ")
        groups[words] = _group(about, **({"cls": GoalFirst} if words == "plan" else {}))
        groups[within].add_typer(groups[words], name=name)
    for words in COMMANDS.examples:
        within, _, name = words.rpartition(" ")
        command = COMMANDS.command(words)
        groups[within].command(name)(command)
    add_examples(groups[""], COMMANDS.examples)
    return groups[""]


def _configured(
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File of settings. Default: FLEET_CONFIG, or fleet.toml in FLEET_HOME."),
    ] = None,
) -> None:
    if config is not None:
        os.environ["FLEET_CONFIG"] = str(config)


app = _app()

if __name__ == "__main__":
    app()

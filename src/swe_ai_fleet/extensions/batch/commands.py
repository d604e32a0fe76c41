"""`fleet batch`: its options, those that `fleet study` has too, and the plan that they are."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from swe_ai_fleet.cli import options
from swe_ai_fleet.cli.client import Fleet
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.options import argument, option
from swe_ai_fleet.cli.order import Order
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ForAll:
    """What holds for all tasks of a file that do not say otherwise."""

    role: options.Role = "DEV"
    checks: options.Check = ()
    setup: options.Setup = ()
    variables: options.Env = ()
    network: options.Network = ()
    timeout_seconds: options.Timeout = 0
    mode: options.Mode = ""
    profile: options.Profiles = ""
    max_cost: options.MaxCost = 0.0

    def order(self, **more: Any) -> Order:
        """The order that each of them becomes, with what else it says."""
        return Order(description="", **asdict(self), **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Where the repositories of the tasks of a file are."""

    repo: Annotated[str, option("The repository of records that name none.", metavar="PATH|URL")] = ""
    repo_root: Annotated[
        Path | None, option("Has clones of owner/name: owner/name, owner__name or name.", metavar="DIR")
    ] = None
    repo_template: Annotated[
        str, option("Where owner/name is cloned from, with {repo} in its place.", metavar="URL")
    ] = ""


async def batch(
    screen: Screen,
    settings: Settings,
    fleet: Fleet,
    file: Annotated[Path, argument("A task a line: SWE-bench records, or our own.", metavar="FILE.jsonl")],
    *,
    where: Where,
    parallel: Annotated[int, option("How many records are under way at a time.", min=1)] = 4,
    stagger: options.Stagger = 1.0,
    agents: Annotated[int, option("How many agents solve each. Default: the council's, or 3.", min=0)] = 0,
    rounds: options.Rounds = None,
    each: ForAll,
    deliver: Annotated[bool, option("Put each winner on a branch of its repository too.")] = False,
    hints: options.Hints = False,
    evaluate: Annotated[bool, option("Run the records' hidden tests on the winners, here, when all is done.")] = False,
    retry: Annotated[bool, option("Run those again that ended without a winner.")] = False,
    strict: Annotated[bool, option("Begin nothing where a line is not a task.")] = False,
    name: Annotated[str, option("Of this batch; another name runs everything anew. Default: the file's.")] = "",
    output: Annotated[
        Path | None, option("For results. Default: beside the file.", words="-o --output", metavar="DIR")
    ] = None,
    model_name: Annotated[str, option("What predictions are labelled with.")] = "swe-ai-fleet",
) -> Exit:
    from swe_ai_fleet.extensions.batch.plan import Plan
    from swe_ai_fleet.extensions.batch.run import batch as work
    from swe_ai_fleet.runtime.factories import workspace_provider
    from swe_ai_fleet.runtime.tool_services import with_isolation_level

    order = each.order(agents=agents, rounds=rounds, deliberate_only=not deliver)
    stem = plain_name(name or file.name.removesuffix(".jsonl"))
    directory = output or file.parent
    plan = Plan(
        file=file,
        name=stem,
        order=order,
        results=directory / f"{stem}.results.jsonl",
        predictions=directory / f"{stem}.preds.json",
        parallel=parallel,
        stagger=stagger,
        retry=retry,
        strict=strict,
        hints=hints,
        evaluate=evaluate,
        model=model_name,
        **asdict(where),
    )
    directory.mkdir(parents=True, exist_ok=True)
    workspaces = workspace_provider(await with_isolation_level(settings)) if evaluate else None
    return await work(screen, fleet, plan, workspaces)


def plain_name(text: str) -> str:
    """The name of what is kept beside a file of tasks. Raises CommandFault where it would lead elsewhere."""
    if "/" in text or not text.strip("."):
        raise CommandFault(f"{text!r} is not a valid name", exit_code=Exit.USAGE, field="name")
    return text

"""`fleet batch` and `fleet study`: their options, and the plans built from them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from swe_ai_fleet.cli import options
from swe_ai_fleet.cli.client import Fleet
from swe_ai_fleet.cli.options import argument, option
from swe_ai_fleet.cli.order import Order
from swe_ai_fleet.cli.screen import CommandFault, Exit, Screen
from swe_ai_fleet.settings import Settings

if TYPE_CHECKING:
    from swe_ai_fleet.extensions.batch.plan import BatchPlan
    from swe_ai_fleet.extensions.batch.verification import HiddenTestBench


class Form(StrEnum):
    """The format of predictions."""

    LIST = "list"
    DICT = "dict"
    JSONL = "jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForAll:
    """The options for tasks of a file that do not set their own."""

    role: options.Role = "DEV"
    checks: options.Check = ()
    setup: options.Setup = ()
    variables: options.Env = ()
    image: options.Image = ""
    image_credential: options.ImageCredential = ""
    network: options.Network = ()
    timeout_seconds: options.Timeout = 0
    mode: options.Mode = ""
    profile: options.Profiles = ""
    max_cost: options.MaxCost = 0.0

    def order(self, **more: Any) -> Order:
        """The order for a task, with `more` of its own options."""
        return Order(description="", **asdict(self), **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Where the repositories of the tasks of a file are."""

    repo: Annotated[str, option("The repository of tasks that name none.", metavar="PATH|URL")] = ""
    repo_root: Annotated[
        Path | None, option("A directory with clones: owner/name, owner__name or name.", metavar="DIR")
    ] = None
    repo_template: Annotated[str, option("The URL of a repository, with {repo} for owner/name.", metavar="URL")] = ""


async def batch(
    screen: Screen,
    settings: Settings,
    fleet: Fleet,
    file: Annotated[
        Path,
        argument(
            "Tasks, one per line: SWE-bench records, or our format; or a directory of Harbor tasks.", metavar="FILE|DIR"
        ),
    ],
    *,
    where: Where,
    only: Annotated[
        tuple[str, ...],
        option("Run only tasks whose ids match a pattern; may be repeated.", words="--task", metavar="GLOB"),
    ] = (),
    limit: Annotated[int, option("Most tasks to run. Default: all.", min=0)] = 0,
    parallel: Annotated[int, option("Tasks that run at the same time.", min=1)] = 4,
    stagger: options.Stagger = 1.0,
    agents: Annotated[int, option("Agents per task. Default: the council's, or 3.", min=0)] = 0,
    rounds: options.Rounds = None,
    each: ForAll,
    deliver: Annotated[bool, option("Also put each winner on a branch of its repository.")] = False,
    hints: options.Hints = False,
    evaluate: Annotated[
        bool, option("Run the records' hidden tests on the winners, on this machine, at the end.")
    ] = False,
    without_images: Annotated[
        bool, option("Use this machine's tools instead of the records' images, for their tests too.")
    ] = False,
    verifier_env: Annotated[tuple[str, ...], option("A variable of a Harbor verifier.", metavar="K=V")] = (),
    predictions: Annotated[
        Form, option("Format of the patches: list, dict (by ids), or jsonl.", words="--predictions")
    ] = Form.LIST,
    retry: Annotated[bool, option("Run tasks again that ended without a winner.")] = False,
    strict: Annotated[bool, option("Start nothing if a line is not a valid task.")] = False,
    name: Annotated[
        str, option("Name of this batch; with another name everything runs again. Default: the file's.")
    ] = "",
    output: Annotated[
        Path | None, option("Directory for results. Default: beside the file.", words="-o --output", metavar="DIR")
    ] = None,
    model_name: Annotated[str, option("Model name in predictions.")] = "swe-ai-fleet",
) -> Exit:
    from swe_ai_fleet.extensions.batch.plan import BatchPlan
    from swe_ai_fleet.extensions.batch.run import batch as work

    order = each.order(agents=agents, rounds=rounds, deliberate_only=not deliver)
    stem = plain_name(name or file.resolve().name.removesuffix(".jsonl"))
    directory = output or file.absolute().parent
    plan = BatchPlan(
        file=file,
        name=stem,
        order=order,
        results=directory / f"{stem}.results.jsonl",
        predictions=directory / f"{stem}.{'all_preds.jsonl' if predictions is Form.JSONL else 'preds.json'}",
        repositories=directory / f"{stem}.repositories",
        report=directory / f"{stem}.report.json",
        form=str(predictions),
        images=not without_images,
        only=only,
        limit=limit,
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
    return await work(screen, fleet, plan, partial(open_bench, settings, plan, verifier_env))


async def open_bench(settings: Settings, plan: BatchPlan, variables: tuple[str, ...] = ()) -> HiddenTestBench:
    """The bench that runs a plan's hidden tests on this machine. Raises CommandFault, PreconditionFailed."""
    from swe_ai_fleet.extensions.batch.verification import HiddenTestBench
    from swe_ai_fleet.runtime.factories import workspace_provider
    from swe_ai_fleet.runtime.tool_services import make_sandbox, with_isolation_level
    from swe_ai_fleet.sandbox import NetworkGrant

    if wrong := [pair for pair in variables if "=" not in pair]:
        raise CommandFault(f"{wrong[0][:80]!r} is not K=V", field="verifier_env")
    chosen = await with_isolation_level(settings)
    return HiddenTestBench(
        workspaces=workspace_provider(chosen),
        sandbox=make_sandbox(chosen),
        directory=plan.results.with_name(f"{plan.name}.evaluation"),
        repositories=plan.repositories,
        network=NetworkGrant(hosts=plan.order.network),
        variables=dict(pair.split("=", 1) for pair in variables),
        image_credential=plan.order.image_credential,
    )


def plain_name(text: str) -> str:
    """Check the name for result files. Raises CommandFault for a name with a path."""
    if "/" in text or not text.strip("."):
        raise CommandFault(f"{text!r} is not a valid name", field="name")
    return text


_MAX_CANDIDATES = 300


async def study(
    screen: Screen,
    settings: Settings,
    fleet: Fleet,
    file: Annotated[Path, argument("Tasks, one per line, in the format of `fleet batch`.", metavar="FILE.jsonl")],
    *,
    candidates: Annotated[str, option("Numbers of candidates; each task runs with each.", metavar="N,N,…")] = "1,3,5",
    without: Annotated[
        str,
        option(
            "Parts to omit in further runs with the most candidates: reviews (with revisions and votes), probes.",
            metavar="PART,…",
        ),
    ] = "",
    repeats: Annotated[int, option("Runs of each task with each number of candidates.", min=1)] = 1,
    rounds: options.Rounds = None,
    where: Where,
    parallel: Annotated[int, option("Tasks that run at the same time.", min=1)] = 4,
    stagger: options.Stagger = 1.0,
    each: ForAll,
    hints: options.Hints = False,
    evaluate: Annotated[bool, option("Run the records' hidden tests on the winners, on this machine.")] = False,
    name: Annotated[
        str, option("Name of this study; with another name everything runs again. Default: the file's.")
    ] = "",
    output: Annotated[
        Path | None,
        option("Directory for results. Default: NAME.study beside the file.", words="-o --output", metavar="DIR"),
    ] = None,
) -> Exit:
    from swe_ai_fleet.extensions.batch.plan import BatchPlan
    from swe_ai_fleet.extensions.batch.study_run import Study, parts
    from swe_ai_fleet.extensions.batch.study_run import study as work

    stem = plain_name(name or file.name.removesuffix(".jsonl"))
    directory = output or file.parent / f"{stem}.study"
    plan = BatchPlan(
        file=file,
        name=stem,
        order=each.order(probes=True, rounds=rounds, deliberate_only=True),
        results=directory / "results.jsonl",
        predictions=directory / "preds.json",
        repositories=directory / "repositories",
        parallel=parallel,
        stagger=stagger,
        hints=hints,
        evaluate=evaluate,
        **asdict(where),
    )
    wanted = Study(
        plan=plan, candidates=numbers(candidates), without=parts(without), repeats=repeats, directory=directory
    )
    return await work(screen, fleet, wanted, partial(open_bench, settings, plan))


def numbers(text: str) -> tuple[int, ...]:
    """The distinct numbers of candidates in ascending order. Raises CommandFault."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(len(part) < 4 and part.isascii() and part.isdigit() for part in parts):
        raise CommandFault(
            f"{text[:80]!r} is not a list of numbers of candidates", field="candidates", hint="like 1,3,5"
        )
    counts = sorted({int(part) for part in parts})
    if not 1 <= counts[0] <= counts[-1] <= _MAX_CANDIDATES:
        raise CommandFault(f"{text[:80]} is out of range", field="candidates", hint=f"1 to {_MAX_CANDIDATES}")
    return tuple(counts)

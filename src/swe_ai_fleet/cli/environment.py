"""`fleet env`: builds and explains an environment without a running fleet; exports the result of an environment run."""

from __future__ import annotations

from typing import Annotated

from swe_ai_fleet.cli import options
from swe_ai_fleet.cli.client import FleetClient
from swe_ai_fleet.cli.messages import pairs
from swe_ai_fleet.cli.options import option
from swe_ai_fleet.cli.order import IncludeDirty, repo_ref
from swe_ai_fleet.cli.outcome import current_state
from swe_ai_fleet.cli.screen import CommandFault, Exit, Screen
from swe_ai_fleet.cli.tables import plain_table
from swe_ai_fleet.codec import to_plain
from swe_ai_fleet.domain.environment import Environment, EnvironmentReport, StepOutcome
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import DEFAULT_TENANT, EnvironmentSpec, PinnedRepository, RepoRef, UncommittedChanges
from swe_ai_fleet.runtime.tool_services import with_isolation_level
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.watching.text import command_line


async def explain(
    screen: Screen,
    settings: Settings,
    *,
    repo: Annotated[str, option("The repository.", metavar="PATH|URL")] = ".",
    ref: options.Ref = "",
    setup: options.Setup = (),
    env: options.Env = (),
    path: options.Path_ = (),
    test_command: options.TestCommand = "",
    no_detect: options.NoDetect = False,
    image: options.Image = "",
    image_credential: options.ImageCredential = "",
    include_dirty: IncludeDirty = UncommittedChanges.REFUSE,
) -> Exit:
    # Uncommitted changes are left out, unless the options include them.
    refused = include_dirty is UncommittedChanges.REFUSE
    uncommitted = UncommittedChanges.IGNORE if refused else include_dirty
    spec = EnvironmentSpec(
        setup=setup,
        variables=pairs(env, "env"),
        path=path,
        test_command=test_command,
        detect=not no_detect,
        image=image,
        image_credential=image_credential,
    )
    # It imports the clients of models and NATS, which nothing else here needs.
    from swe_ai_fleet.runtime.factories import workspace_provider

    named = repo_ref(repo, ref=ref, uncommitted=uncommitted)
    reference = RepoRef(location=named.path or named.url, ref=ref, uncommitted=uncommitted)
    workspaces = workspace_provider(await with_isolation_level(settings))
    pinned = await workspaces.pin(DEFAULT_TENANT, reference)
    spec = await workspaces.pin_image(DEFAULT_TENANT, spec)
    screen.note(f"building the environment of {pinned.commit[:12]}, or taking it from the cache ...")
    environment = await workspaces.environment(pinned, spec)
    if screen.json:
        screen.document(_document(pinned, environment))
    else:
        _print(screen, pinned, environment)
    return Exit.ACCEPTED


def _options(screen: Screen, state: ExecutionState) -> None:
    """Print the result of an execution's environment run, or of an earlier one that it used, as options."""
    proposal = state.proposal
    if proposal is None:
        raise CommandFault(
            f"no environment run found out anything that execution {state.execution_id} uses",
            exit_code=Exit.NOT_ACCEPTED,
            hint=f"fleet show {state.execution_id} says what its environment was made of",
        )
    spec = proposal.amending(state.task.environment)
    words = [word for line in spec.setup for word in ("--setup", line)]
    words += ["--test-command", spec.test_command] if spec.test_command else []
    screen.result(
        {
            "setup_commands": list(spec.setup),
            "test_command": spec.test_command,
            "notes": proposal.notes,
            "source": proposal.source,
        },
        command_line(words),
    )


def _lock(screen: Screen, state: ExecutionState) -> None:
    """Print the packages in the environment of an execution's baseline, as a requirements file with hashes.

    Npm's packages follow as comments, which pip ignores.
    """
    report = state.baseline.report if state.baseline is not None else EnvironmentReport()
    if not report.installed and not report.installed_npm:
        raise CommandFault(
            f"no package of an index is recorded for execution {state.execution_id}",
            exit_code=Exit.NOT_ACCEPTED,
            hint=f"fleet show {state.execution_id} says what its environment was made of",
        )
    lines = (*report.installed, *(f"# npm: {line}" for line in report.installed_npm))
    document = {"installed": list(report.installed), "installed_npm": list(report.installed_npm)}
    screen.result(document, "\n".join(lines))


def _document(pinned: PinnedRepository, environment: Environment) -> dict[str, object]:
    return {
        "commit": pinned.commit,
        "subdirectory": pinned.subdirectory,
        "key": environment.key,
        "cached": environment.cached,
        "variables": dict(environment.variables),
        "path": list(environment.path),
        "notes": list(environment.notes),
        **to_plain(environment.report),
    }


def _print(screen: Screen, pinned: PinnedRepository, environment: Environment) -> None:
    report = environment.report
    origin = "taken from the cache" if environment.cached else f"built in {report.seconds:.1f} s"
    screen.line(f"Environment of {pinned.commit[:12]}: {origin if environment.key else 'nothing to build'}")
    screen.out.print(
        plain_table(("decided", "from"), [(decision.what, decision.source) for decision in report.decisions])
    )
    if report.steps:
        rows = [(str(step.outcome), f"{step.seconds:.1f}", step.purpose, step.command) for step in report.steps]
        screen.out.print(plain_table(("step", "seconds", "what for", "command"), rows))
    for step in report.steps:
        if step.outcome is not StepOutcome.DONE and step.message:
            screen.line(f"{step.purpose} ({step.source}): {step.message}", style="yellow")
    if report.installed:
        names = [line.split()[0] for line in report.installed]
        screen.line(f"Installed with pip, with hashes in --json: {', '.join(names)}")
    if report.installed_npm:
        names = [line.split()[0] for line in report.installed_npm]
        screen.line(f"Installed with npm, with hashes in --json: {', '.join(names)}")
    for text in report.left_out:
        screen.line(f"skipped: {text}", style="yellow")
    for note in environment.notes:
        screen.line(note)
    command = command_line(report.test_command)
    screen.line(
        f"Tests: {command} (from {report.test_source})" if command else "Tests: none; name them with --test-command"
    )


async def export(
    screen: Screen,
    client: FleetClient,
    *,
    name: options.Execution,
    lock: Annotated[
        bool, option("Print the installed packages instead, with hashes, in pip's format; npm's as comments.")
    ] = False,
) -> Exit:
    state = await current_state(client, await client.execution(await client.find(name)))
    (_lock if lock else _options)(screen, state)
    return Exit.ACCEPTED

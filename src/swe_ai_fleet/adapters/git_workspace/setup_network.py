"""Whether set-up commands reach a package index and a registry, tried the way a build does."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace.building import pattern_of, way_out
from swe_ai_fleet.adapters.git_workspace.places import TOOLS_MOUNT, PythonTools, SetupPolicy
from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.environment import Environment, Mount
from swe_ai_fleet.sandbox import NetworkGrant, Refusal, RefusalReason, Sandbox

_SECONDS = 60.0
_MOST_HOSTS = 4
# Something small of each, so that the host that has the files is asked too, and not only the index.
_PIP = """\
PYTHONPATH="$0" exec python3 -m pip download --no-deps --no-cache-dir --retries 0 --timeout 10 -q -d "$TMPDIR" iniconfig
"""
_NPM = 'cd "$TMPDIR" && exec npm pack --silent --fetch-retries=0 isarray'


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What trying one package manager gave: how its command ended, and the setting that would help.

    `refused` are the hosts that the proxy did not connect to.
    """

    program: str
    ok: bool = False
    message: str = ""
    refused: tuple[Refusal, ...] = ()
    way_out: str = ""


async def try_setup_network(home: Path, sandbox: Sandbox, policy: SetupPolicy) -> tuple[Attempt, ...]:
    """Download one small package with pip and one with npm, by their own configuration, in the sandbox.

    A host that is refused is opened for the rest of the trial, to find the others behind it: nothing else is asked of
    it than what the package managers want.
    """
    tools = await PythonTools(home / "tools").directory()
    place = TOOLS_MOUNT if sandbox.policy.level.mounts else str(tools)
    commands = {"pip": ("sh", "-c", _PIP, f"{place}/pip"), "npm": ("sh", "-c", _NPM)}
    environment = Environment(variables=policy.variables, mounts=(Mount(source=str(tools), target=place),))
    empty = home / "environments" / "probe"
    await asyncio.to_thread(empty.mkdir, parents=True, exist_ok=True)
    attempts = (_attempt(name, argv, sandbox, policy, environment, empty) for name, argv in commands.items())
    return tuple(await asyncio.gather(*attempts))


async def _attempt(
    program: str, argv: tuple[str, ...], sandbox: Sandbox, policy: SetupPolicy, environment: Environment, empty: Path
) -> Attempt:
    network = policy.network
    refused: dict[tuple[str, RefusalReason], Refusal] = {}
    while True:
        async with sandbox.workspace(empty, environment=environment, network=network) as workspace:
            has_it = ("sh", "-c", 'command -v "$0"', program)
            if program == "npm" and not (await workspace.run(Command(argv=has_it, light=True))).ok:
                return Attempt(program=program, message="npm is not on this machine")
            result = await workspace.run(Command(argv=argv, light=True, merge_stderr=True, timeout_seconds=_SECONDS))
            refusals = workspace.refusals
        refused |= {(refusal.host, refusal.reason): refusal for refusal in refusals}
        private = [pattern_of(refusal) for refusal in refusals if refusal.reason is RefusalReason.PRIVATE]
        foreign = [pattern_of(refusal) for refusal in refusals if refusal.reason is RefusalReason.NOT_GRANTED]
        if result.ok and not refused:
            return Attempt(program=program, ok=True)
        if result.ok or not (private or foreign) or len(refused) > _MOST_HOSTS:
            break
        network = NetworkGrant(hosts=(*network.hosts, *foreign), private_hosts=(*network.private_hosts, *private))
    lines = [line for line in result.stdout.text().splitlines() if line.strip()]
    return Attempt(
        program=program,
        message=(lines[-1] if lines else f"exit code {result.exit_code}")[:300],
        refused=tuple(refused.values()),
        way_out=way_out(refused.values(), policy.network),
    )

"""Runs the steps of a recipe in the sandbox: a failed step is retried without its culprits, then in smaller pieces."""

from __future__ import annotations

import asyncio
import re
import secrets
import shlex
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace.directories import write_file
from swe_ai_fleet.codec import from_json
from swe_ai_fleet.domain.command import DEFAULT_PORTS, Command, CommandResult, NetworkGrant
from swe_ai_fleet.domain.environment import BuildStep, EnvironmentDecision, StepOutcome
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.environments.pip_steps import CONSTRAINTS
from swe_ai_fleet.environments.recipe import RecipeStep, Removal
from swe_ai_fleet.environments.repository_files import RepositoryFiles
from swe_ai_fleet.environments.requirements import as_constraints, offending_pins, recorded_line, unavailable_packages
from swe_ai_fleet.ports import SecretMask
from swe_ai_fleet.sandbox import LocalWorkspace, ProxyRefusal, RefusalReason
from swe_ai_fleet.sandbox.jail import python

_TAIL_LINES = 20
_TAIL_CHARACTERS = 2000
_MAX_REPAIRS = 5
_SHOWN_LINES = 6
# Failures in a row, each with an unreachable host, after which the network counts as unavailable.
_MOST_REFUSALS = 3
_PIP = ("-I", "-m", "pip")
REPORTS = "pip-reports"
MOST_RECORDED = 2_000
_RECORDED_BYTES = 1024 * 1024
_NPM_RECORD_BYTES = 16 * 1024 * 1024
# Reads metadata only, so that no installed code runs.
_RECORD = """
import glob, importlib.metadata, json, re, shutil, sys
venv, reports = sys.argv[1:]
hashes = {}
def key(name, version):
    return re.sub("[-_.]+", "-", name).lower(), version
for path in glob.glob(reports + "/*.json"):
    with open(path) as file:
        for item in json.load(file)["install"]:
            archive = item["download_info"].get("archive_info", {})
            about = item["metadata"]
            hashes[key(about["name"], about["version"])] = archive.get("hashes", {}).get("sha256", "")
shutil.rmtree(reports, ignore_errors=True)
packages = []
for distribution in importlib.metadata.distributions(path=glob.glob(venv + "/lib/python3*/site-packages")):
    if distribution.read_text("direct_url.json") is None:
        metadata = distribution.metadata or {}
        name, version = str(metadata.get("Name") or ""), str(metadata.get("Version") or "")
        packages.append((name, version, hashes.get(key(name, version), "")))
print(json.dumps(packages))
"""

# Runs no installed code either: editable installations may have put anything on the path.
_HAS_PYTEST = """
import glob, importlib.machinery, importlib.metadata, sys
places = glob.glob(sys.argv[1] + "/lib/python3*/site-packages")
installed = importlib.metadata.distributions(path=places)
names = {str((distribution.metadata or {}).get("Name")).lower() for distribution in installed}
sys.exit(not ("pytest" in names or importlib.machinery.PathFinder.find_spec("pytest", places)))
"""
_FINDS_PYTEST = "import importlib.util, sys; sys.exit(importlib.util.find_spec('pytest') is None)"
_PYTEST = re.compile(r"(?:.*/)?pytest(?:\.py|/__init__\.py)")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRoot:
    """An environment's directory: on this host, and as commands see it; `reports`: our own pip is installed in it."""

    path: Path
    seen_at: str
    reports: bool = False


class Build:
    """One build: runs steps in a workspace and records them.

    Args:
        workspace: The workspace of the steps; its `/environment` is writable.
        lock: The pins in its constraints file, if there is one.
        grant: The network of the steps, for messages about refused hosts.

    Attributes:
        exposed: Whether Python ran in the environment after directories of the repository came on its path, and so may
            have imported the repository's code.
    """

    def __init__(
        self,
        workspace: LocalWorkspace,
        root: BuildRoot,
        lock: Mapping[str, str] | None,
        *,
        grant: NetworkGrant,
        mask: SecretMask,
        seconds: float,
    ) -> None:
        self._workspace = workspace
        self._python = python(workspace.environment)
        self.in_image = workspace.environment.image is not None
        self._root = root
        self._lock = lock
        self._grant = grant
        self._mask = mask
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._unpinned: set[str] = set()
        self._unreached = 0
        self.steps: list[BuildStep] = []
        self.decisions: list[EnvironmentDecision] = []
        self._on_path = False
        self.exposed = False

    @property
    def left_out(self) -> tuple[str, ...]:
        """The packages that could not be installed, each with its reason in one line."""
        return tuple(
            f"{step.purpose}: {_reason_line(step.message)}"
            for step in self.steps
            if step.outcome is StepOutcome.LEFT_OUT
        )

    async def record(self, known: Iterable[str] = ()) -> tuple[str, ...]:
        """The packages installed from an index, as lines for pip. `known` are those of an earlier build."""
        base = self._root.seen_at
        argv = (*self._python, "-I", "-S", "-c", _RECORD, f"{base}/venv", f"{base}/{REPORTS}")
        listing = await self._workspace.run(
            Command(argv=argv, timeout_seconds=self._seconds, output_limit=_RECORDED_BYTES)
        )
        try:
            packages = from_json(list[tuple[str, str, str]], listing.stdout.text())[:MOST_RECORDED]
        except ValueError:
            self.decisions.append(EnvironmentDecision(what="the list of installed packages could not be recorded"))
            return ()
        hashed = {line.split()[0]: line for line in known if "--hash" in line}
        lines = filter(None, (recorded_line(*package) for package in packages))
        return tuple(sorted({hashed.get(line, line) for line in lines}))

    async def has_pytest(self, files: RepositoryFiles) -> bool:
        """Whether the environment has pytest, from an index or from the repository."""
        argv = (*self._python, "-I", "-S", "-c", _HAS_PYTEST, f"{self._root.seen_at}/venv")
        if self.in_image:
            # The packages of the image's Python count, and only that Python can locate them.
            self.exposed = self.exposed or self._on_path
            argv = (f"{self._root.seen_at}/venv/bin/python", "-I", "-c", _FINDS_PYTEST)
        if (await self._workspace.run(Command(argv=argv))).ok:
            return True
        if not self._on_path or not any(_PYTEST.fullmatch(path) for path in files.files):
            return False
        # In the root directory, so that only directories on the path can be imported as pytest.
        self.exposed = True
        return (await self._workspace.run(Command(argv=("sh", "-c", "cd / && exec python3 -c 'import pytest'")))).ok

    async def npm_record(self, directory: str) -> str:
        """npm's own record of its installation in a directory of the checkout; empty without a usable one."""
        argv = ("cat", "node_modules/.package-lock.json")
        command = Command(
            argv=argv, cwd=directory or ".", timeout_seconds=self._seconds, output_limit=_NPM_RECORD_BYTES
        )
        answer = await self._workspace.run(command)
        return answer.stdout.text() if answer.ok and not answer.stdout.elided else ""

    async def run(self, steps: Iterable[RecipeStep]) -> None:
        """Run steps in order. Raises PreconditionFailed where a required one fails, with its file and a hint."""
        for step in steps:
            await self._run(step)

    @property
    def hollow(self) -> bool:
        """Whether there were packages to install, and all of them failed."""
        installs = self._installs()
        return bool(installs) and all(step.outcome is not StepOutcome.DONE for step in installs)

    def _installs(self) -> list[BuildStep]:
        return [step for step in self.steps if " install" in step.command or " ci " in step.command]

    def check_network(self) -> None:
        """Raise PreconditionFailed where nothing could be installed because hosts were refused or unreachable."""
        if not self.hollow:
            return
        refusals = self._workspace.refusals
        if not refusals:
            return
        step = self._installs()[0]
        hint = way_out(refusals, self._grant)
        # The step's own message may contain the hint, which this error has already.
        lines = [line for line in step.message.splitlines() if not hint or hint not in line]
        printed = "\n".join(lines[-_SHOWN_LINES:])
        raise PreconditionFailed(
            f"nothing could be installed: {refusals[0].text}\n`{step.command}`, decided from "
            f"{step.source or 'the repository'}:\n{printed}",
            field="environment",
            hint=hint,
        )

    async def _run(self, step: RecipeStep) -> bool:
        """Run a step; returns whether it, or all of its replacements, succeeded."""
        if not step.required and time.monotonic() > self._deadline:
            self._note(step, StepOutcome.LEFT_OUT, 0.0, "no time left for it")
            return False
        result, seconds, refused = await self._execute(step)
        for _ in range(_MAX_REPAIRS):
            if result.ok:
                break
            repaired = await self._without_culprits(step, result)
            if repaired is None:
                break
            step = repaired
            result, more, refused = await self._execute(step)
            seconds += more
        if result.ok:
            self._note(step, StepOutcome.DONE, seconds)
            return True
        message = self._message(result, refused)
        if step.required:
            raise PreconditionFailed(
                f"setting up the environment failed: `{self._command_line(step.argv)}`, decided from "
                f"{step.source or 'the repository'}:\n{message}",
                field=step.concerns,
                hint=way_out(refused, self._grant) or _HINTS.get(step.concerns.partition("[")[0], ""),
            )
        replaced = bool(step.alternatives or step.pieces or step.spare)
        self._note(step, StepOutcome.REPLACED if replaced else StepOutcome.LEFT_OUT, seconds, message)
        if self._unreached >= _MOST_REFUSALS:
            self.check_network()
        for alternative in step.alternatives:
            position = len(self.steps)
            if await self._run(alternative):
                return True
            # A failed alternative is not a failure by itself: another one follows, or the pieces do.
            self.steps[position:] = [_as_replaced(failed) for failed in self.steps[position:]]
        if step.alternatives and not step.pieces:
            self.steps[-1] = replace(self.steps[-1], outcome=StepOutcome.LEFT_OUT)
        # All pieces run, even if one fails.
        results = [await self._run(piece) for piece in step.pieces]
        return bool(results) and all(results)

    async def _without_culprits(self, step: RecipeStep, result: CommandResult) -> RecipeStep | None:
        """The step without the pins or packages that made it fail; None if there are none."""
        output = result.stdout.text()
        if step.pinned and self._lock is not None:
            blamed = offending_pins(output, self._lock.keys() - self._unpinned)
            if blamed:
                self._unpinned |= blamed
                pins = as_constraints(self._lock, self._unpinned)
                await asyncio.to_thread(write_file, self._root.path / CONSTRAINTS, pins)
                decision = f"without the pins of {', '.join(sorted(blamed))}, which do not fit this Python"
                self.decisions.append(EnvironmentDecision(what=decision, source=step.source))
                return step
        if step.optional and (blamed := unavailable_packages(output, step.optional)):
            left_out = {argument for name in blamed for argument in step.optional[name]}
            for name in sorted(blamed):
                missing = RecipeStep(argv=step.argv, purpose=" ".join(step.optional[name]), source=step.source)
                self._note(missing, StepOutcome.LEFT_OUT, 0.0, self._message(result, self._workspace.refusals))
            rest = {name: arguments for name, arguments in step.optional.items() if name not in blamed}
            return replace(step, argv=tuple(word for word in step.argv if word not in left_out), optional=rest)
        if step.removal is not None and (names := await self._removable(step, step.removal, output)):
            removed = await self._workspace.run(self._command(replace(step, argv=(*step.removal.remove, *names))))
            if removed.ok:
                for name in names:
                    packages = step.removal.packages[name]
                    missing = RecipeStep(argv=step.argv, purpose=f"{name} {packages}", source=step.source)
                    self._note(missing, StepOutcome.LEFT_OUT, 0.0, self._message(result, ()))
                rest = {name: packages for name, packages in step.removal.packages.items() if name not in names}
                return replace(step, argv=step.removal.then, removal=replace(step.removal, packages=rest))
        return None

    async def _removable(self, step: RecipeStep, removal: Removal, output: str) -> tuple[str, ...]:
        """The packages to leave out: those that the output blames, else those that need them."""
        if (names := removal.blamed(output)) or not removal.log:
            return names
        log = await self._workspace.run(self._command(replace(step, argv=removal.log)))
        return removal.needing(output, log.stdout.text())

    async def _execute(self, step: RecipeStep) -> tuple[CommandResult, float, tuple[ProxyRefusal, ...]]:
        before = {id(refusal) for refusal in self._workspace.refusals}
        started = time.monotonic()
        self.exposed = self.exposed or self._on_path
        result = await self._workspace.run(self._command(step))
        self._on_path = self._on_path or (result.ok and step.puts_on_path)
        refused = tuple(refusal for refusal in self._workspace.refusals if id(refusal) not in before)
        self._unreached = self._unreached + 1 if refused and not result.ok else 0
        return result, time.monotonic() - started, refused

    def _command(self, step: RecipeStep) -> Command:
        argv = step.argv
        if argv[1:4] == _PIP and self._root.reports:
            # The report has the hash of each archive, which installed packages do not.
            argv = (*argv, "--report", f"{self._root.seen_at}/{REPORTS}/{secrets.token_hex(8)}.json")
        return Command(
            argv=argv,
            cwd=step.directory or ".",
            variables=step.variables,
            timeout_seconds=self._seconds,
            merge_stderr=True,
        )

    def _note(self, step: RecipeStep, outcome: StepOutcome, seconds: float, message: str = "") -> None:
        self.steps.append(
            BuildStep(
                purpose=step.purpose,
                command=self._command_line(step.argv),
                outcome=outcome,
                source=step.source,
                seconds=round(seconds, 2),
                message=message,
            )
        )

    def _message(self, result: CommandResult, refused: tuple[ProxyRefusal, ...]) -> str:
        lines = [line.rstrip() for line in self._mask(result.stdout.text()).splitlines() if line.strip()]
        while len(lines) > 1 and sum(map(len, lines)) > _TAIL_CHARACTERS:
            lines = lines[1:]
        tail = "\n".join(lines[-_TAIL_LINES:])[-_TAIL_CHARACTERS:]
        end = "it timed out" if result.timed_out else f"exit code {result.exit_code}"
        help_ = way_out(refused, self._grant)
        return "\n".join(
            part for part in (end, tail, f"{refused[0].text}: {help_}" if refused and help_ else "") if part
        )

    def _command_line(self, argv: tuple[str, ...]) -> str:
        """A command as a person would type it."""
        if argv[1:4] == _PIP:
            words = [
                word for word in argv[4:] if not word.startswith(("--no-input", "--disable-pip", "--progress-bar"))
            ]
            argv = ("pip", *words)
        if argv[:2] == ("sh", "-c"):
            # A caller's line is shown unchanged; of our own scripts only the arguments.
            argv = argv[2:3] if len(argv) == 3 else argv[3:]
        text = argv[0] if len(argv) == 1 else shlex.join(argv)
        return self._mask(" ".join(text.split()))[:1000]


_HINTS = {"environment.setup": "correct the set-up command, or leave it out", "environment": "see `fleet env explain`"}


def way_out(refusals: Iterable[ProxyRefusal], grant: NetworkGrant) -> str:
    """A hint for allowing the hosts that the proxy refused; empty if it refused none."""
    refused = list(refusals)
    private = _hosts_refused(refused, RefusalReason.PRIVATE)
    # A host may have been refused for both reasons, one after the other.
    foreign = [name for name in _hosts_refused(refused, RefusalReason.NOT_GRANTED) if name not in private]
    lines: list[str] = []
    if private:
        lines.append(f"FLEET_SETUP_PRIVATE_HOSTS={','.join((*grant.private_hosts, *private))}")
    if foreign:
        lines.append(f"FLEET_SETUP_HOSTS={','.join((*grant.hosts, *foreign))}")
    if lines:
        return f"set {' and '.join(lines)} for the server, or ask its operator"
    if refused:
        return "can this machine reach it? FLEET_SETUP_VARIABLES passes settings of a private index to set-up commands"
    return ""


def _hosts_refused(refusals: Iterable[ProxyRefusal], reason: RefusalReason) -> list[str]:
    """The hosts that were refused for a reason, in the form of settings."""
    return list(dict.fromkeys(pattern_of(refusal) for refusal in refusals if refusal.reason is reason))


def pattern_of(refusal: ProxyRefusal) -> str:
    """A refused host in the form of settings, with its port if that is unusual."""
    return refusal.host if refusal.port in DEFAULT_PORTS else f"{refusal.host}:{refusal.port}"


def _as_replaced(step: BuildStep) -> BuildStep:
    return replace(step, outcome=StepOutcome.REPLACED) if step.outcome is StepOutcome.LEFT_OUT else step


def _reason_line(message: str) -> str:
    """The most informative line of a message."""
    lines = message.splitlines()
    informative = [line for line in lines if "FLEET_SETUP" in line] or [
        # Without pip's line that lists all versions.
        line
        for line in lines
        if (line.lower().startswith(("error", "npm err", "fatal")) or "ERR" in line) and "(from versions:" not in line
    ]
    return (informative or lines[-1:] or [""])[0].strip()[:300]

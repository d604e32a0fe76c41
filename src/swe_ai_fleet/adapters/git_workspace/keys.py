"""Keys of environments: which builds are equal, and which commit's code may run during a build.

A key is made of this machine's interpreters, toolchains and pip, and of a commit's files, which are read from git
objects without a checkout.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.metadata
import json
import os
import posixpath
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from swe_ai_fleet.adapters.git_workspace.git import Git, GitLayout
from swe_ai_fleet.adapters.git_workspace.git_dirs import packed_refs, submodules_of
from swe_ai_fleet.adapters.git_workspace.setup import SetupPolicy
from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.environment import Environment, ImageRoot
from swe_ai_fleet.domain.json_values import items, json_object, mapping, string, strings
from swe_ai_fleet.domain.task import EnvironmentSpec, PinnedRepository
from swe_ai_fleet.environments import digest
from swe_ai_fleet.environments.project_code import project_code
from swe_ai_fleet.environments.recipe import NO_PYTHON, Machine, PythonVersion, Recipe
from swe_ai_fleet.environments.repository_files import RepositoryFiles, is_manifest, is_read, joined
from swe_ai_fleet.sandbox import IsolationLevel, Sandbox
from swe_ai_fleet.sandbox.jail import python

_NAME = re.compile(r"python3\.(\d{1,2})")
_OLDEST: PythonVersion = (3, 7)
_TOOLCHAINS = ("node", "npm", "go", "cargo", "gcc", "make")
_SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreters:
    """The machine for detection, and the installation of each interpreter; `identity` changes with any of them."""

    machine: Machine
    prefixes: Mapping[PythonVersion, Path]
    identity: str

    def prefix(self, version: PythonVersion | None) -> str:
        """The installation directory of an interpreter, to be mounted in sandboxes; empty if it is there anyway."""
        if version is None or version == self.machine.default:
            return ""
        prefix = str(self.prefixes.get(version, ""))
        return "" if prefix in ("/usr", "/usr/local") else prefix


def find_interpreters(environ: Mapping[str, str]) -> Interpreters:
    """Find this machine's interpreters by their files, without running a program. Blocking.

    Beside those on PATH, it finds the neighbours of the fleet's own interpreter (pyenv has a directory for each
    version), and uv's.
    """
    default = (sys.version_info.major, sys.version_info.minor)
    own = Path(sys.base_prefix, "bin", f"python{default[0]}.{default[1]}")
    programs: dict[PythonVersion, Path] = {default: own}
    for directory in _directories(environ):
        for program in sorted(directory.glob("python3.*"), reverse=True):
            match = _NAME.fullmatch(program.name)
            version: PythonVersion = (3, int(match[1])) if match else (0, 0)
            if version >= _OLDEST and version not in programs and (real := _interpreter(program, version)):
                programs[version] = real
    toolchains = {name: path for name in _TOOLCHAINS if (path := shutil.which(name, path=":".join(_SYSTEM_PATH)))}
    pip_requires, pip_version = _pip()
    machine = Machine(
        default=default,
        pythons={version: str(program) for version, program in programs.items()},
        pip_requires=pip_requires,
        programs=frozenset(toolchains),
    )
    marks = [_mark(Path(path)) for path in (*programs.values(), *toolchains.values())]
    identity = hashlib.sha256("\n".join((pip_version, *marks)).encode()).hexdigest()[:16]
    prefixes = {version: program.parent.parent for version, program in programs.items()}
    return Interpreters(machine=machine, prefixes=prefixes, identity=identity)


# Run by the fleet's own Python in the image: finds its toolchains, and asks the Pythons on PATH for their versions.
_LOOK = """
import json, os, re, shutil, subprocess, sys
pythons, default = {}, []
for directory in os.environ["PATH"].split(":"):
    try:
        names = sorted(name for name in os.listdir(directory) if re.fullmatch("python3([.][0-9]+)?", name))
    except OSError:
        continue
    for name in names:
        path = os.path.join(directory, name)
        argv = [path, "-I", "-S", "-c", "import sys; print(*sys.version_info[:2])"]
        try:
            said = subprocess.run(argv, capture_output=True, text=True, timeout=20).stdout.split()
            version = [int(number) for number in said]
        except (OSError, ValueError, subprocess.SubprocessError):
            continue
        if len(version) == 2 and version[0] == 3:
            pythons.setdefault("{}.{}".format(*version), path)
            default = default or (version if name == "python3" else [])
print(json.dumps({"default": default, "pythons": pythons, "programs": list(filter(shutil.which, sys.argv[1:]))}))
"""


async def look_into(image: ImageRoot, sandbox: Sandbox) -> Machine:
    """The toolchains on an image's PATH, without Pythons that do not start."""
    environment = Environment(image=image)
    argv = (*python(environment), "-I", "-S", "-c", _LOOK, *_TOOLCHAINS)
    with TemporaryDirectory(prefix="fleet-image-") as directory:
        async with sandbox.workspace(Path(directory), environment=environment) as workspace:
            run = await workspace.run(Command(argv=argv, timeout_seconds=120.0, output_limit=_MAX_TEST_BYTES))
    report = json_object(run.stdout.text())
    pythons = {
        version: path for text, path in mapping(report.get("pythons")).items() if (version := _parse_version(text))
    }
    default = _parse_version(".".join(str(number) for number in items(report.get("default"))))
    return Machine(
        default=default or max(pythons, default=NO_PYTHON),
        pythons={version: string(path) for version, path in pythons.items()},
        programs=frozenset(strings(report.get("programs"))),
        image=True,
    )


def _parse_version(text: str) -> PythonVersion | None:
    match = _NAME.fullmatch(f"python{text}")
    return (3, int(match[1])) if match else None


def _directories(environ: Mapping[str, str]) -> Iterable[Path]:
    home = environ.get("HOME", "")
    roots = [Path(sys.base_prefix).parent]
    roots += [Path(home, name) for name in (".pyenv/versions", ".local/share/uv/python") if home]
    if uv := environ.get("UV_PYTHON_INSTALL_DIR"):
        roots.append(Path(uv))
    for root in roots:
        # Newer patch releases first, since the first one of each version is used.
        yield from sorted((path for path in root.glob("*/bin") if root.name != "usr"), key=_release, reverse=True)
    path = environ.get("PATH", os.defpath).split(":")
    yield from map(Path, dict.fromkeys((*filter(os.path.isabs, path), "/usr/local/bin", "/usr/bin")))


def _release(path: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", path.parent.name)[:3])


def _interpreter(program: Path, version: PythonVersion) -> Path | None:
    """The resolved program, if it is an executable with its standard library, and no script that starts another."""
    try:
        real = program.resolve(strict=True)
        with real.open("rb") as file:
            is_program = file.read(4) == b"\x7fELF"
        library = real.parent.parent / "lib" / f"python{version[0]}.{version[1]}"
        return real if is_program and (library / "os.py").is_file() else None
    except OSError:
        return None


def _pip() -> tuple[str, str]:
    try:
        pip = importlib.metadata.distribution("pip")
    except importlib.metadata.PackageNotFoundError:
        return "", ""
    return pip.metadata["Requires-Python"] or "", pip.version


def _mark(program: Path) -> str:
    try:
        status = program.stat()
    except OSError:
        return str(program)
    return f"{program} {program.resolve()} {status.st_size} {status.st_mtime_ns}"


_MAX_TESTS_READ = 40
_MAX_MANIFESTS_READ = 1000
_MAX_FILE_BYTES = 8 * 1024 * 1024
_MAX_TEST_BYTES = 64 * 1024
_MAX_BYTES = 64 * 1024 * 1024
_VERSION_TAG = re.compile(rb"^[0-9a-f]{40,64} refs/tags/[^\n]*\d+\.\d+", re.M)
_COMMITTED = re.compile(rb"^committer .*> (\d{1,12}) [+-]\d{4}$", re.M)
_PARENT = re.compile(rb"^parent ([0-9a-f]{40,64})$", re.M)
_OLDEST_LISTING = datetime(2010, 1, 1, tzinfo=UTC)
_RECENT = timedelta(days=180)


async def read_files(git: Git, seed: Path) -> RepositoryFiles:
    """The files of a seed's commit, read with two git processes."""
    layout = GitLayout(git_dir=seed)
    listed = await git.run("ls-tree", "-r", "-z", "-l", "--full-tree", seed.name, layout=layout)
    files: dict[str, str] = {}
    readable: list[tuple[str, int]] = []
    for entry in filter(None, os.fsdecode(listed.stdout).split("\0")):
        facts, path = entry.split("\t", 1)
        mode, _, name, size = facts.split()
        files[path] = name
        if mode.startswith("100") and is_read(path):
            readable.append((path, int(size)))
    wanted = _affordable(readable)
    names = (seed.name, f"{seed.name}^{{tree}}", *(files[path] for path in wanted))
    questions = "".join(f"{name}\n" for name in names)
    answered = await git.run(
        "cat-file", "--batch", layout=layout, stdin=questions.encode(), output_limit=2 * _MAX_BYTES
    )
    contents = _split(answered.stdout)
    refs, submodules = await asyncio.to_thread(lambda: (packed_refs(seed), submodules_of(seed)))
    return RepositoryFiles(
        tree=contents[1][0],
        parent=match[1].decode() if (match := _PARENT.search(contents[0][1].partition(b"\n\n")[0])) else "",
        files=files,
        texts={
            path: content.decode("utf-8", "replace") for path, (_, content) in zip(wanted, contents[2:], strict=True)
        },
        until=_until(contents[0][1], datetime.now(UTC)),
        versions_tagged=_VERSION_TAG.search(refs) is not None,
        submodules={submodule.path: submodule.tree for submodule in submodules if submodule.tree},
    )


def _until(commit: bytes, now: datetime) -> str:
    """The first day of the month after a commit's; empty for a commit of the last months, or without a sensible date.

    All commits of a month share it, and so can share an environment.
    """
    match = _COMMITTED.search(commit.partition(b"\n\n")[0])
    seconds = int(match[1]) if match else 0
    if not _OLDEST_LISTING.timestamp() < seconds < (now - _RECENT).timestamp():
        return ""
    day = datetime.fromtimestamp(seconds, UTC)
    return f"{day.year + day.month // 12}-{day.month % 12 + 1:02}-01"


def _affordable(readable: list[tuple[str, int]]) -> list[str]:
    """The files to read: manifests near the root first, then some tests, without huge files."""
    tests = manifests = total = 0
    affordable: list[str] = []
    for path, size in sorted(readable, key=lambda entry: (not is_manifest(entry[0]), entry[0].count("/"), entry[0])):
        manifest = is_manifest(path)
        if size > (_MAX_FILE_BYTES if manifest else _MAX_TEST_BYTES) or total + size > _MAX_BYTES:
            continue
        if (manifest and manifests >= _MAX_MANIFESTS_READ) or (not manifest and tests >= _MAX_TESTS_READ):
            continue
        manifests += manifest
        tests += not manifest
        total += size
        affordable.append(path)
    return affordable


def _split(stream: bytes) -> list[tuple[str, bytes]]:
    objects: list[tuple[str, bytes]] = []
    position = 0
    while position < len(stream):
        end = stream.index(b"\n", position)
        name, _, size = stream[position:end].decode().split(" ")
        start = end + 1
        objects.append((name, stream[start : start + int(size)]))
        position = start + int(size) + 1
    return objects


_FORMAT = 5
_LISTINGS_KEPT = 64
_GO_FILES = frozenset({"go.mod", "go.sum", "go.work", "go.work.sum"})


class EnvironmentKeys:
    """Keys of environments, made of everything that affects a build."""

    def __init__(self, git: Git, *, policy: SetupPolicy, level: IsolationLevel) -> None:
        self._git = git
        self._policy = policy
        self._level = level
        self._listings: dict[Path, RepositoryFiles] = {}
        self._reasons: dict[tuple[str, str], str] = {}
        self._images: dict[str, Machine] = {}
        self._interpreters: Interpreters | None = None

    async def files(self, seed: Path) -> RepositoryFiles:
        if seed not in self._listings:
            while len(self._listings) >= _LISTINGS_KEPT:
                self._listings.pop(next(iter(self._listings)))
            self._listings[seed] = await read_files(self._git, seed)
        return self._listings[seed]

    async def ground(self, repository: PinnedRepository, seed: Path, files: RepositoryFiles) -> Path:
        """The seed whose code a build may run: for our own commit, its ancestor's if both need the same environment, so
        that a candidate's code is never in the environment in which others are tested."""
        wanted, ground, content = digest(files, repository.subdirectory), seed, files
        # Our own commits may be stacked: a candidate on a snapshot of uncommitted changes.
        while repository.snapshot_of and ground.name != repository.snapshot_of and content.parent:
            parent = seed.parent / content.parent
            if not await asyncio.to_thread(parent.is_dir):
                break
            content = await self.files(parent)
            if digest(content, repository.subdirectory) != wanted:
                break
            ground = parent
        return ground

    async def unshared_reason(self, files: RepositoryFiles, directory: str) -> str:
        """Why no other commit can share the environment of these files; empty if others can."""
        key = (files.tree, directory)
        if key not in self._reasons:
            while len(self._reasons) >= _LISTINGS_KEPT:
                self._reasons.pop(next(iter(self._reasons)))
            self._reasons[key] = await asyncio.to_thread(project_code, files, directory)
        return self._reasons[key]

    async def toolchains(self, image: ImageRoot | None, sandbox: Sandbox) -> Machine:
        """The machine of a build: this one, or the image, whose programs are probed once on this node."""
        own = (await self.machine()).machine
        if image is None:
            return own
        if image.digest not in self._images:
            self._images[image.digest] = await look_into(image, sandbox)
        return replace(self._images[image.digest], pip_requires=own.pip_requires)

    async def machine(self) -> Interpreters:
        """This machine's interpreters, found at the first call."""
        if self._interpreters is None:
            self._interpreters = await asyncio.to_thread(find_interpreters, os.environ)
        return self._interpreters

    async def key(
        self, repository: PinnedRepository, files: RepositoryFiles, spec: EnvironmentSpec, tools: Path, ground: Path
    ) -> str:
        """The key of an environment whose build may run code of the seed `ground`."""
        # A caller's set-up commands may read all files of the commit.
        content = files.tree if spec.setup else digest(files, repository.subdirectory)
        if await self.unshared_reason(files, repository.subdirectory):
            # So may the repository's code that runs during the build; it may also read history and tags.
            content += f" {ground.name} {hashlib.sha256(await asyncio.to_thread(packed_refs, ground)).hexdigest()}"
        facts = [
            *(repository.subdirectory, spec.image, list(spec.setup), spec.detect, content),
            *(sorted(files.submodules.items()), files.versions_tagged),
        ]
        return await self._hashed(repository.tenant, spec, tools, facts)

    async def packages_key(
        self, tenant: str, recipe: Recipe, files: RepositoryFiles, spec: EnvironmentSpec, tools: Path
    ) -> str:
        """The key of a recipe's steps that run no code of the repository, from the files that they read."""
        lists = {joined(step.directory, word) for step in recipe.steps for word in step.argv} & files.files.keys()
        lists |= {path for path in files.files if posixpath.basename(path) in _GO_FILES}
        if recipe.python is not None and recipe.python.lock:
            lists.add(recipe.python.lock)
        steps = [(step.directory, step.argv, sorted(step.variables.items())) for step in recipe.steps]
        pins = recipe.python.pins if recipe.python is not None else ()
        facts = [steps, sorted(recipe.files.items()), sorted(recipe.build_variables.items()), files.digest(lists), pins]
        return await self._hashed(tenant, spec, tools, ["packages", *facts])

    async def _hashed(self, tenant: str, spec: EnvironmentSpec, tools: Path, facts: Sequence[object]) -> str:
        network = self._policy.network
        always = [
            *(_FORMAT, self._level, tenant, tools.name, (await self.machine()).identity),
            *(list(spec.path), sorted(spec.variables.items()), sorted(self._policy.variables)),
            *(list(network.hosts), list(network.private_hosts), *([spec.image] if spec.image else [])),
        ]
        return hashlib.sha256(json.dumps([always, facts]).encode()).hexdigest()[:32]

"""Reads Harbor's task folders, as of Terminal-Bench: task.toml, instruction.md, environment/, tests/.

A task that names an image runs in it; none is built. Of environment/Dockerfile only instructions that place files or
set variables are applied: WORKDIR, COPY and ADD of local files, ENV. Its FROM is replaced by this machine's tools,
which the task's notes say; a task that needs more is not run. The content of a folder is untrusted.
"""

from __future__ import annotations

import json
import re
import shlex
import tarfile
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, TypeGuard

from pydantic import BaseModel, Field, ValidationError

from swe_ai_fleet.domain.command import check_variables
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest
from swe_ai_fleet.domain.json_values import mapping, parse_json, parsed
from swe_ai_fleet.tools.files.packing import Ignore, pack
from swe_ai_fleet.tools.files.paths import MissingPath, Tree

CONFIG = "task.toml"
REWARDS = "/logs/verifier"
MOST_BYTES = 256 * 1024 * 1024
"""The largest size of environment/ and of tests/."""
_MOST_FILES, _MOST_TEXT, _MOST_REWARD = 20_000, 1024 * 1024, 64 * 1024
# Top-level directories that belong to the system, to the sandbox, or to Harbor's format.
_RESERVED = re.compile(r"bin|boot|dev|etc|home|lib(32|64|x32)?|logs|proc|run|sbin|solution|sys|tests|tmp|usr|var")
_WITHOUT_EFFECT = re.compile(r"CMD|ENTRYPOINT|EXPOSE|HEALTHCHECK|LABEL|MAINTAINER|SHELL|STOPSIGNAL|USER|VOLUME")
_TEMPLATE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]


class _Agent(BaseModel):
    timeout_sec: Seconds | None = None
    user: str | int | None = None


class _Environment(BaseModel):
    docker_image: str | None = None
    os: str = "linux"
    memory_mb: Annotated[int, Field(gt=0)] | None = None
    gpus: int = 0
    tpu: dict[str, Any] | None = None
    mcp_servers: list[Any] = Field(default_factory=list[Any])
    healthcheck: dict[str, Any] | None = None
    network_mode: str = "public"
    env: dict[str, str] = Field(default_factory=dict[str, str])
    workdir: str | None = None


class _Verifier(BaseModel):
    timeout_sec: Seconds = 600.0
    env: dict[str, str] = Field(default_factory=dict[str, str])
    user: str | int | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: dict[str, Any] | None = None
    collect: list[Any] = Field(default_factory=list[Any])


class _Name(BaseModel):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][\w.-]*/[A-Za-z0-9_-][\w.-]*$")]


class _Config(BaseModel):
    """The keys of task.toml that affect a run; others are ignored."""

    schema_version: Annotated[str, Field(pattern=r"^1\.\d+$")] = "1.4"
    task: _Name | None = None
    agent: _Agent = _Agent()
    verifier: _Verifier = _Verifier()
    environment: _Environment = _Environment()
    steps: list[Any] = Field(default_factory=list[Any])
    artifacts: list[str | dict[str, Any]] = Field(default_factory=list[str | dict[str, Any]])


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborTask:
    """The content of a task folder.

    Attributes:
        name: The task's own (org/name), or the folder's.
        workdir: The path of the agents' workspace for tests; empty: the image's working directory.
        copies: (path in environment/, target below `workdir`); both relative, `.` for the whole.
        verifier_variables: Of tests/test.sh; values may be templates.
        timeout_seconds: Of the agents; 0: the fleet's default.
        memory_bytes: Limit of tests/test.sh; 0: the sandbox's.
        offline: Whether agents and tests have no network.
        separate: Whether tests run in a clean environment with only the `artifacts` of the agents.
        artifacts: Paths below `workdir`.
        image: The image with its files; empty: none.
        needs: Why it cannot be run here; empty: it can. `notes` list deviations from the task.
    """

    folder: Path
    name: str
    instruction: str
    workdir: str = "/workspace"
    copies: tuple[tuple[str, str], ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    verifier_variables: Mapping[str, str] = field(default_factory=dict[str, str])
    timeout_seconds: int = 0
    verifier_seconds: float = 600.0
    memory_bytes: int = 0
    offline: bool = False
    separate: bool = False
    artifacts: tuple[str, ...] = ()
    image: str = ""
    needs: str = ""
    notes: tuple[str, ...] = ()


def read_task(folder: Path) -> HarborTask:
    """Read a task folder. Raises InvalidRequest for a malformed one."""
    tree = Tree(folder.resolve(), str(folder.resolve()))
    config = _config(_text(tree, CONFIG))
    instruction = "" if config.steps else _text(tree, "instruction.md")
    environment, verifier = config.environment, config.verifier
    try:
        check_variables(environment.env, field="environment.env")
        check_variables(verifier.env, field="verifier.env")
        dockerfile = _Dockerfile()
        if (folder / "environment/Dockerfile").exists() and not environment.docker_image:
            dockerfile = _dockerfile(_text(tree, "environment/Dockerfile"))
        elif (folder / "environment").is_dir() and not environment.docker_image:
            dockerfile.copies = [(".", environment.workdir or "/workspace")]
        named = environment.workdir or dockerfile.workdir
        workdir = "" if environment.docker_image and not named else _workdir(named)
        copies = tuple(_below(workdir, source, target) for source, target in dockerfile.copies)
        artifacts = tuple(_artifact(workdir, entry) for entry in config.artifacts)
        needs = _needs(config, folder) or dockerfile.needs
    except (_Unsupported, FleetError) as fault:
        workdir, copies, artifacts, dockerfile, needs = "/workspace", (), (), _Dockerfile(), str(fault)
    return HarborTask(
        folder=folder.resolve(),
        name=config.task.name if config.task else folder.resolve().name,
        instruction=instruction,
        workdir=workdir,
        copies=copies,
        variables={**dockerfile.variables, **environment.env},
        verifier_variables=verifier.env,
        timeout_seconds=-int(-(config.agent.timeout_sec or 0) // 1),
        verifier_seconds=verifier.timeout_sec,
        memory_bytes=(environment.memory_mb or 0) * 1024**2,
        offline=environment.network_mode == "no-network",
        separate=verifier.environment_mode == "separate" or (verifier.environment or None) is not None,
        artifacts=artifacts,
        image=environment.docker_image or "",
        needs=needs,
        notes=tuple(_notes(config, dockerfile)),
    )


class _Unsupported(Exception):
    """The task needs something that is not supported; the text says what."""


@dataclass(kw_only=True)
class _Dockerfile:
    base: str = ""
    workdir: str = ""
    copies: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    variables: dict[str, str] = field(default_factory=dict[str, str])
    needs: str = ""
    idle: list[str] = field(default_factory=list[str])


def _text(tree: Tree, path: str) -> str:
    try:
        return tree.read(path, limit=_MOST_TEXT).data.decode()
    except (FleetError, UnicodeDecodeError) as fault:
        raise InvalidRequest(f"{path}: {_first(fault)}") from None


def _first(fault: Exception) -> str:
    """The first part of a fault's text, without its advice to agents."""
    return str(fault).partition(";")[0][:300]


def _config(text: str) -> _Config:
    try:
        values = parsed(tomllib.loads, text)
        values.setdefault("schema_version", values.pop("version", "1.4"))
        return _Config.model_validate(values)
    except ValidationError as fault:
        first = fault.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidRequest(f"{CONFIG}: {where}: {first['msg']}"[:500]) from None
    except ValueError as fault:
        raise InvalidRequest(f"{CONFIG}: {fault}"[:500]) from None


def _needs(config: _Config, folder: Path) -> str:
    environment, verifier, other = config.environment, config.verifier, config.verifier.environment or {}
    wanted = {
        "a container engine for its steps": config.steps,
        f"an environment on {environment.os[:40]}": environment.os.lower() != "linux",
        "several containers (docker-compose.yaml)": any((folder / "environment").glob("docker-compose.y*ml")),
        "a GPU or TPU": environment.gpus or environment.tpu,
        "MCP servers of its environment": environment.mcp_servers,
        "a service with a health check": environment.healthcheck,
        "a container for its verifier's collect commands": verifier.collect,
        "an image for its verifier": other.get("docker_image") or (folder / "tests/Dockerfile").exists(),
    }
    return next((need for need, needed in wanted.items() if needed), "")


def _notes(config: _Config, dockerfile: _Dockerfile) -> Iterable[str]:
    if dockerfile.base:
        yield f"FROM {dockerfile.base}: the tools of this machine in its place"
    if dockerfile.idle:
        yield f"{', '.join(dict.fromkeys(dockerfile.idle))} of the Dockerfile have no effect"
    if config.environment.network_mode != "no-network":
        yield f"network_mode {config.environment.network_mode[:20]}: only what --network opens"
    if config.agent.user is not None or config.verifier.user is not None:
        yield "commands run as the sandbox's user"


def _dockerfile(text: str) -> _Dockerfile:
    """The supported instructions of a Dockerfile. Raises _Unsupported for a path that cannot be used."""
    dockerfile = _Dockerfile()
    workdir = PurePosixPath("/")
    for line in _instructions(text):
        word, rest = line.partition(" ")[0].upper(), line.partition(" ")[2].strip()
        if word == "FROM" and not dockerfile.base:
            dockerfile.base = rest.split()[0][:200] if rest else "?"
        elif word == "WORKDIR" and "$" not in rest:
            workdir /= rest.strip("\"'")
            dockerfile.workdir = str(workdir)
        elif word in ("COPY", "ADD"):
            dockerfile.copies += _copied(line, rest, workdir)
        elif word == "ENV" and "$" not in rest:
            dockerfile.variables |= _pairs(rest)
        elif _WITHOUT_EFFECT.fullmatch(word):
            dockerfile.idle.append(word)
        else:
            dockerfile.needs = dockerfile.needs or f"an image made of its Dockerfile, for {line[:120]!r}"
    check_variables(dockerfile.variables, field="environment/Dockerfile")
    return dockerfile


def _instructions(text: str) -> list[str]:
    """The lines of a Dockerfile without comments, with continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return [line.strip() for line in re.sub(r"\\[ \t]*\n", " ", "\n".join(lines)).split("\n") if line.strip()]


def _copied(line: str, rest: str, workdir: PurePosixPath) -> list[tuple[str, str]]:
    words = _words(rest)
    while words and words[0].startswith(("--chown=", "--chmod=")):
        words.pop(0)
    if len(words) < 2 or any(re.search(r"[$*?\[<]|^--|://", word) for word in words):
        raise _Unsupported(f"an image made of its Dockerfile, for {line[:120]!r}")
    *sources, target = words
    into = target.endswith("/") or len(sources) > 1 or target in (".", "./")
    return [(source, f"{workdir / target}{'/' if into else ''}") for source in sources]


def _words(rest: str) -> list[str]:
    """The arguments of an instruction, written as words or as a JSON list; empty where they are malformed."""
    try:
        return [str(word) for word in json.loads(rest)] if rest.startswith("[") else shlex.split(rest)
    except ValueError:
        return []


def _pairs(rest: str) -> dict[str, str]:
    words = _words(rest)
    if words and "=" not in words[0]:
        return {words[0]: " ".join(words[1:])}
    if not all("=" in word for word in words):
        raise _Unsupported(f"an image made of its Dockerfile, for 'ENV {rest[:100]}'")
    return dict(word.split("=", 1) for word in words)


def _workdir(text: str) -> str:
    """The path of the workspace. Raises _Unsupported for a reserved path."""
    path = PurePosixPath(text or "/workspace")
    if not path.is_absolute() or ".." in path.parts or len(path.parts) < 2 or _RESERVED.fullmatch(path.parts[1]):
        raise _Unsupported(f"its files at {text[:200]!r}, where the sandbox has its own")
    return str(path)


def _below(workdir: str, source: str, target: str) -> tuple[str, str]:
    if ".." in PurePosixPath(source).parts:
        raise _Unsupported(f"a file from outside of environment/: {source[:200]!r}")
    path = PurePosixPath(target)
    if ".." in path.parts or not path.is_relative_to(workdir):
        raise _Unsupported(f"a file at {target[:200]!r}, outside of its directory {workdir}")
    below = str(path.relative_to(workdir))
    return source.lstrip("/") or ".", f"{below}/" if target.endswith("/") and below != "." else below


def _artifact(workdir: str, entry: str | dict[str, Any]) -> str:
    text = str(entry if isinstance(entry, str) else entry.get("source", ""))
    path = PurePosixPath(workdir, text)
    if ".." in path.parts or (path.is_absolute() and not (workdir and path.is_relative_to(workdir))):
        raise _Unsupported(f"the artifact {text[:200]!r}, outside of its directory {workdir}")
    return str(path.relative_to(workdir)) if path.is_absolute() else str(path)


def resolved_variables(templates: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Variables with `${NAME}` and `${NAME:-default}` in their values replaced from `given`, never from this process.

    Raises InvalidRequest for a name without a value.
    """

    def replaced(match: re.Match[str]) -> str:
        if match[1] not in given and ":-" not in match[0]:
            raise InvalidRequest(f"needs the variable {match[1]}", hint=f"--verifier-env {match[1]}=...")
        return given.get(match[1], match[2])

    return {name: given.get(name, _TEMPLATE.sub(replaced, value)) for name, value in templates.items()}


def copy_folder(
    root: Path, folder: str, target: Path, *, ignored: str = "", links: bool = False, times: int = 1
) -> None:
    """Copy the files below a folder of `root` to a directory, except those that a .dockerignore excludes.

    Raises FleetError for links, with `links` only for those that lead out of it, and for more than `times` a task's
    limits of files and bytes.
    """
    bounds = {"max_bytes": times * MOST_BYTES, "max_files": times * _MOST_FILES}
    packing = pack(root, folder, ignore=Ignore(ignored), extra={}, **bounds)
    with packing as packed, tarfile.open(fileobj=packed) as archive:
        members = archive.getmembers()
        for member in members:
            if member.issym() and not links:
                raise InvalidRequest(f"{folder}/{member.name[:200]} is a link")
        target.mkdir(parents=True, exist_ok=True)
        try:
            archive.extractall(target, members, filter="data")
        except tarfile.FilterError as fault:
            raise InvalidRequest(str(fault)[:300]) from None


def place_files(task: HarborTask, context: Path, target: Path) -> None:
    """Copy the files of a task's environment to the paths in its Dockerfile, with `target` for its `workdir`.

    `context` is an empty directory, for a copy of environment/. Raises FleetError.
    """
    if task.copies:
        ignored = "environment/.dockerignore"
        text = _text(Tree(task.folder), ignored) if (task.folder / ignored).exists() else ""
        copy_folder(task.folder, "environment", context, ignored=text)
    for source, path in task.copies:
        begin, end = context / source, target / path
        if begin.is_dir():
            copy_folder(context, "" if source == "." else source, end)
        elif begin.is_file():
            end = end / begin.name if path.endswith("/") or path == "." or end.is_dir() else end
            end.parent.mkdir(parents=True, exist_ok=True)
            end.write_bytes(begin.read_bytes())
            end.chmod(begin.stat().st_mode & 0o777)
        else:
            raise InvalidRequest(f"environment/{source[:200]} does not exist")


def read_rewards(directory: Path) -> dict[str, float]:
    """The rewards in a verifier's reward.json, else reward.txt. Raises InvalidRequest unless they are finite numbers.

    The verifier could write anything into the directory: links, pipes and large files are refused.
    """
    tree = Tree(directory, REWARDS)
    for name in ("reward.json", "reward.txt"):
        try:
            data = tree.read(name, limit=_MOST_REWARD).data
        except MissingPath:
            continue
        except FleetError as fault:
            raise InvalidRequest(f"{name}: {_first(fault)}") from None
        try:
            value: object = parse_json(data, finite=True) if name == "reward.json" else float(data.decode())
            rewards = mapping(value) or {"reward": value}
        except (ValueError, OverflowError):
            rewards = {}
        numbers = {key[:200]: float(reward) for key, reward in rewards.items() if _is_finite(reward)}
        if not rewards or len(numbers) < len(rewards):
            raise InvalidRequest(f"{name} holds no finite number: {data[:80]!r}")
        return numbers
    raise InvalidRequest("the verifier wrote no reward")


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and -1e308 < value < 1e308


def passed(rewards: Mapping[str, float]) -> bool | None:
    """Whether rewards mean that a task is solved; None if one is outside 0 to 1."""
    deciding = [rewards["reward"]] if "reward" in rewards else list(rewards.values())
    return all(number == 1 for number in deciding) if all(0 <= number <= 1 for number in deciding) else None

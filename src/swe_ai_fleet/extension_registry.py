"""The registry of extensions: what an extension can provide, and the installed ones.

Extensions are the folders of `swe_ai_fleet.extensions`. Composition roots load their parts from here and know none of
them by name; no module of the core imports an extension (`lint-imports`). Decision 46 says why.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, Literal

_FOLDER = "swe_ai_fleet.extensions"
Part = Literal["services", "workflows", "context", "knowledge", "executor", "settings", "tools", "harnesses", "doctor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEntry:
    """A command of `fleet`.

    Attributes:
        at: Its code within `swe_ai_fleet`: `module:function`, or the module whose `ROWS` have it.
        about: Its help text; lists of commands show the first sentence.
        examples: Example calls.
    """

    at: str
    about: str
    examples: tuple[str, ...]


def entry(at: str, about: str, *examples: str) -> CommandEntry:
    """The entry of a command."""
    return CommandEntry(at=at, about=about, examples=examples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """The parts that an extension provides; an empty one is not provided.

    A part is `module:name` within the extension's folder. It is imported when a composition root loads it, and a
    command when it is called: `fleet` loads no servers, and servers load no commands.

    Attributes:
        services: Opens a gRPC service of the orchestrator process: `open_service(deps)`, a context that yields a
            `services.grpc_server.Service`.
        groups: The help texts of words that further words of its commands follow.
        commands: Its commands of `fleet`, by their words.
        workflows: Runs workflows: a `swe_ai_fleet.orchestrator.execution_context.Workflows`.
        context: Serves the context service: a `services.context.OpenContext`.
        knowledge: Context, memory and outcomes for agents, plan sessions and programs: a
            `swe_ai_fleet.runtime.knowledge.Knowledge`.
        executor: Runs agents with `FLEET_EXECUTOR=kubernetes`: `open_fleet(log)`, a context that yields a
            `swe_ai_fleet.runtime.service_deps.AgentFleet`.
        tools: A family of tools: a `swe_ai_fleet.tools.pack.ToolPack`.
        harnesses: Runs agents at endpoints `acp:NAME`: `open(settings, access)`, which returns a
            `swe_ai_fleet.agents.external_agent.OutsideAgent`.
        doctor: Its findings for `fleet doctor`: `examine(settings)`, awaited.
        settings: The settings that only its programs read from the environment, for documents.
        programs: Its packages beside `swe_ai_fleet`, whose names stand in images and manifests.
        exports: Names of the extension's package that `swe_ai_fleet` exports, too.
        buckets: Its NATS buckets that erasures treat in their own way: `fleet` belongs to no tenant; of `followed`,
            processes keep copies; `cache`. In all but the first, keys begin with the tenant (behind `list.` or
            `pending.`), and values contain the ids of their executions.
        task_buckets: Its buckets whose keys have a session's id behind the tenant, with the number of tokens that
            follow it; their values need not contain an execution's id.
    """

    services: str = ""
    groups: Mapping[str, str] = field(default_factory=dict[str, str])
    commands: Mapping[str, CommandEntry] = field(default_factory=dict[str, CommandEntry])
    workflows: str = ""
    context: str = ""
    knowledge: str = ""
    executor: str = ""
    tools: str = ""
    harnesses: str = ""
    doctor: str = ""
    settings: str = ""
    programs: tuple[str, ...] = ()
    exports: tuple[str, ...] = ()
    buckets: Mapping[str, Literal["fleet", "followed", "cache"]] = field(default_factory=dict[str, Any])
    task_buckets: Mapping[str, int] = field(default_factory=dict[str, int])


@cache
def extensions() -> Mapping[str, Extension]:
    """The installed extensions by name: the `EXTENSION` of each folder."""
    names = sorted(module.name for module in pkgutil.iter_modules(import_module(_FOLDER).__path__))
    return {name: import_module(f"{_FOLDER}.{name}").EXTENSION for name in names}


def load_export(name: str) -> Any:
    """What an extension exports under this name. Raises KeyError where none does."""
    for folder, extension in extensions().items():
        if name in extension.exports:
            return getattr(import_module(f"{_FOLDER}.{folder}"), name)
    raise KeyError(name)


def load_parts(part: Part) -> list[Any]:
    """The parts of one kind, of all extensions that have one."""
    parts: list[Any] = []
    for name, extension in extensions().items():
        module, _, member = getattr(extension, part).partition(":")
        if module:
            parts.append(getattr(import_module(f"{_FOLDER}.{name}.{module}"), member))
    return parts

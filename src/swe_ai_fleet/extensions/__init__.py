"""Extensions beside the core: a folder each, which can be deleted together with its tests.

Composition roots load what the folders provide and know none of them by name; no module of the core imports an
extension (`lint-imports`). Decision 46 says why.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, Literal

Part = Literal["services", "workflows", "context", "knowledge", "executor", "settings", "tools", "harnesses", "doctor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEntry:
    """A command of `fleet`.

    Attributes:
        at: Its code within `swe_ai_fleet`: `module:function`, or the module whose `ROWS` have it.
        about: What the help says, the first sentence in lists too.
        examples: Lines that call it.
    """

    at: str
    about: str
    examples: tuple[str, ...]


def entry(at: str, about: str, *examples: str) -> CommandEntry:
    """The entry of a command."""
    return CommandEntry(at=at, about=about, examples=examples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """What an extension provides; empty: nothing of the kind.

    A part is `module:name` within the extension's folder, and imported when a composition root loads it, a command when
    it is asked for: `fleet` loads no servers, and servers load no commands.

    Attributes:
        services: Opens a gRPC service that the orchestrator serves: `open_service(deps)`, a context that yields a
            `services.grpc_server.Service`.
        groups: What the help says of words that other words of its commands follow.
        commands: What `fleet` has of it, by the words.
        workflows: What runs workflows: `swe_ai_fleet.orchestrator.execution_context.Workflows`.
        context: What serves the context service: `services.context.OpenContext`.
        knowledge: What agents, plan sessions and programs ask of it: `swe_ai_fleet.runtime.knowledge.Knowledge`.
        executor: Where agents run with `FLEET_EXECUTOR=kubernetes`: `open_fleet(log)`, a context that yields a
            `swe_ai_fleet.runtime.service_deps.AgentFleet`.
        tools: A family of tools: a `swe_ai_fleet.tools.pack.ToolPack`.
        harnesses: The way to agents at endpoints `acp:NAME`: `open(settings, access)`, which gives a
            `swe_ai_fleet.agents.external_agent.OutsideAgent`.
        doctor: What `fleet doctor` finds of it: `examine(settings)`, awaited for findings.
        settings: What its programs read from the environment beside the fleet's settings, for documents.
        programs: Packages beside `swe_ai_fleet` that are its own, since images and manifests call them by name.
        exports: Names of the extension's package that `swe_ai_fleet` exports, too.
        buckets: Its buckets in NATS that are not like others, for erasures: `fleet`, of no tenant; `followed`,
            processes keep copies; `cache`. In all but the first keys begin with the tenant (behind `list.` or
            `pending.`), and values name the executions that they are about.
        task_buckets: Its buckets whose keys have the id of a session behind the tenant, and how many tokens follow it;
            their values need not name an execution.
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
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return {name: import_module(f"{__name__}.{name}").EXTENSION for name in names}


def load_export(name: str) -> Any:
    """What an extension exports under this name. Raises KeyError where none does."""
    for folder, extension in extensions().items():
        if name in extension.exports:
            return getattr(import_module(f"{__name__}.{folder}"), name)
    raise KeyError(name)


def load_parts(part: Part) -> list[Any]:
    """The parts of one kind, of all extensions that have one."""
    parts: list[Any] = []
    for name, extension in extensions().items():
        module, _, member = getattr(extension, part).partition(":")
        if module:
            parts.append(getattr(import_module(f"{__name__}.{name}.{module}"), member))
    return parts

"""What stands beside the core: a folder here for each extension, which can be deleted together with its tests.

The composition roots ask for what the folders that are there bring, and know none of them by name. No module of the
core imports an extension (`lint-imports`); decision 46 says why.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Literal

Part = Literal["services", "commands", "workflows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """What an extension brings; empty: nothing of the kind.

    Each is `module:name` within the extension's folder, and imported when a composition root asks for it: `fleet` loads
    no servers, and servers load no commands.

    Attributes:
        services: A gRPC service that the orchestrator serves: `services.extensions.OpenService`.
        commands: What `fleet` has of it: `swe_ai_fleet.cli.command.Commands`.
        workflows: What runs workflows: `swe_ai_fleet.orchestrator.drive.Workflows`.
        exports: Names of the extension's package that `swe_ai_fleet` offers, too.
    """

    services: str = ""
    commands: str = ""
    workflows: str = ""
    exports: tuple[str, ...] = ()


@cache
def extensions() -> Mapping[str, Extension]:
    """The extensions that are there, by name: what the folders call `EXTENSION`."""
    names = sorted(one.name for one in pkgutil.iter_modules(__path__))
    return {name: import_module(f"{__name__}.{name}").EXTENSION for name in names}


def exported(name: str) -> Any:
    """What an extension lets `swe_ai_fleet` offer under a name. Raises KeyError for a name that none has."""
    for folder, extension in extensions().items():
        if name in extension.exports:
            return getattr(import_module(f"{__name__}.{folder}"), name)
    raise KeyError(name)


def brought(part: Part) -> list[Any]:
    """What the extensions bring of a kind."""
    found: list[Any] = []
    for name, extension in extensions().items():
        module, _, member = getattr(extension, part).partition(":")
        if module:
            found.append(getattr(import_module(f"{__name__}.{name}.{module}"), member))
    return found

"""What commands of a repository find when they run: interpreter, variables, directories on PATH."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from swe_ai_fleet.domain.network import NetworkGrant


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A directory of the host shown read-only inside the sandbox."""

    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """An environment that is ready to use. `key` identifies it in the cache; empty for the bare sandbox.

    `path` holds directories as commands see them, put first on PATH. `test_command` and `lint_command` are argvs found
    in the repository, empty where there is none; `notes` tell an agent in a line each what there is. Without `network`
    commands reach nothing but themselves.
    """

    key: str = ""
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    path: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    test_command: tuple[str, ...] = ()
    lint_command: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    network: NetworkGrant | None = None
    cached: bool = False

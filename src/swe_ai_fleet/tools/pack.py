"""Tool packs: toolkits that extensions add to the core's own, configured by settings."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, ClassVar

from swe_ai_fleet.domain.task import Constraints, Role, Task
from swe_ai_fleet.extension_registry import load_parts
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.tools.operation import Toolkit
from swe_ai_fleet.tools.pipeline import Pipeline

if TYPE_CHECKING:
    from swe_ai_fleet.settings import Settings


class ToolPack:
    """Base class of an extension's tool pack. Made from settings; raises InvalidRequest naming a malformed one.

    Attributes:
        kit: The class of its toolkit; the catalogue lists its operations.
        shown: The operations that a role's models see from the start, if they are usable.
        summary: What is configured, in a few words; empty: nothing.
        secrets: Values from settings, masked in all text that leaves the process.
        useless: Tools and operations that lack a configured service. Models are not told of them; calls still work.
    """

    kit: ClassVar[type[Toolkit]]
    shown: ClassVar[Mapping[Role, frozenset[str]]] = {}
    summary: str = ""
    secrets: Collection[str] = ()
    useless: frozenset[str] = frozenset()

    def __init__(self, settings: Settings) -> None: ...

    def toolkit(
        self, workspace: Workspace, pipeline: Pipeline, task: Task | None = None, taken: Collection[str] = ()
    ) -> Toolkit | None:
        """The toolkit for the run of a task, or without a task for a program's own calls; None: there is none.

        None of its names may be among `taken`.
        """
        raise NotImplementedError

    def server_names(self, constraints: Constraints) -> Collection[str]:
        """The servers, configured or requested by a task, whose tools are only known once they are connected.

        Raises InvalidRequest naming a field of the constraints.
        """
        return ()

    def beside_runs(self, workspace: Workspace, taken: Collection[str], *, hints: bool) -> Toolkit | None:
        """The toolkit of the configured servers for chats and plans, which have no clone; None: there is none.

        With `hints`, a tool counts as read-only if its server says so, not only if the operator does.
        """
        return None

    async def reap(self, executions: Collection[str]) -> str:
        """Remove what ended executions left outside of their workspaces; returns what was removed, in words.

        Raises ToolFailure, with a hint, if the service cannot be reached.
        """
        return ""


def installed_packs() -> list[type[ToolPack]]:
    """The packs of all extensions."""
    return load_parts("tools")


def unconfigured_packs() -> tuple[ToolPack, ...]:
    """The packs of all extensions, with no setting set."""
    # Imported late: programs use tools without settings.
    from swe_ai_fleet.settings import Settings

    return tuple(pack(Settings.model_construct()) for pack in installed_packs())

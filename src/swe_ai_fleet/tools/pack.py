"""A family of tools beside the core's own, which an extension brings and settings configure."""

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
    """Base of such families, made of settings. Raises InvalidRequest naming a malformed one.

    Attributes:
        kit: The class of its toolkit; the catalogue has its operations, in front of those of the core's `before`.
        shown: Operations that models of a role are shown at first, where they are of use.
        summary: What is configured, in a few words; empty: nothing.
        secrets: What settings hold that is masked wherever text leaves the process.
        useless: Tools and operations that lack what they need: no model is told of them, though all can be called.
    """

    kit: ClassVar[type[Toolkit]]
    before: ClassVar[str] = "builtin"
    shown: ClassVar[Mapping[Role, frozenset[str]]] = {}
    summary: str = ""
    secrets: Collection[str] = ()
    useless: frozenset[str] = frozenset()

    def __init__(self, settings: Settings) -> None: ...

    def toolkit(
        self, workspace: Workspace, pipeline: Pipeline, task: Task | None = None, taken: Collection[str] = ()
    ) -> Toolkit | None:
        """The toolkit of a task's run, beside names that are `taken`; without a task, that of a program's own calls."""
        raise NotImplementedError

    def server_names(self, constraints: Constraints) -> Collection[str]:
        """The names of servers, those of a task too, that bring tools which only they know.

        Raises InvalidRequest naming a field of the constraints.
        """
        return ()

    def beside_runs(self, workspace: Workspace, taken: Collection[str], *, hints: bool) -> Toolkit | None:
        """The toolkit of the installation's servers, for what runs in no clone; None where it has none.

        `hints` says whether a tool only reads where its server says so, beside the operator's word.
        """
        return None

    async def reap(self, executions: Collection[str]) -> str:
        """Remove what ended executions left outside of their workspaces; what that was, in words.

        Raises ToolFailure, with the way out, where nobody can look.
        """
        return ""


def installed_packs() -> list[type[ToolPack]]:
    """The packs of all extensions."""
    return load_parts("tools")


def unconfigured_packs() -> tuple[ToolPack, ...]:
    """The packs of all extensions where no setting is set."""
    # Tools are used without settings, too.
    from swe_ai_fleet.settings import Settings

    return tuple(pack(Settings.model_construct()) for pack in installed_packs())

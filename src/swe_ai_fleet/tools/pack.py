"""A family of tools beside the core's own: what an extension brings, and an installation configures."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, ClassVar, Self

from swe_ai_fleet.domain.task import Constraints, Role, Task
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.tools.operation import Toolkit
from swe_ai_fleet.tools.pipeline import Pipeline

if TYPE_CHECKING:
    from swe_ai_fleet.settings import Settings


class ToolPack:
    """Base of such families: frozen dataclasses whose fields are the configuration, and whose defaults are none.

    Attributes:
        toolkit: The class of its toolkit; the catalogue has its operations.
        before: The toolkit of the core that follows it in the catalogue.
        shown: Operations that models of a role are shown at first, where they are of use.
    """

    toolkit: ClassVar[type[Toolkit]]
    before: ClassVar[str] = "builtin"
    shown: ClassVar[Mapping[Role, frozenset[str]]] = {}

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The pack as settings configure it. Raises InvalidRequest naming a malformed setting."""
        raise NotImplementedError

    @property
    def summary(self) -> str:
        """What is configured, in a few words; empty: nothing."""
        return ""

    @classmethod
    def secrets_in(cls, settings: Settings) -> Collection[str]:
        """Values of its settings that are masked wherever text leaves the process. Raises as `of` does."""
        return ()

    @property
    def useless(self) -> frozenset[str]:
        """The tools and the operations that lack what they need: no model is told of them, though all can be called."""
        return frozenset()

    def server_names(self, constraints: Constraints) -> Collection[str]:
        """The names of the installation's and a task's servers of tools, whose operations only they know.

        Raises InvalidRequest naming the field of the task.
        """
        return ()

    def direct(self, workspace: Workspace, pipeline: Pipeline) -> Toolkit | None:
        """The toolkit for a program's own calls; None where there is none outside of runs.

        What is not configured says so when it is called.
        """
        return None

    def of_run(self, workspace: Workspace, pipeline: Pipeline, task: Task, taken: Collection[str]) -> Toolkit | None:
        """The toolkit of an agent's run; None where the run has none.

        Args:
            taken: The names of the run's other tools and operations.
        """
        return self.direct(workspace, pipeline)

    def beside_runs(self, workspace: Workspace, taken: Collection[str], *, hints: bool) -> Toolkit | None:
        """The toolkit of the installation's servers, for chats and plan sessions, which run in no clone.

        Args:
            hints: Whether a tool only reads where its server says so, beside the operator's word.
        """
        return None

    async def reap(self, executions: Collection[str]) -> str:
        """Remove what ended executions left outside of their workspaces; what that was, empty for nothing.

        Raises ToolFailure, with what to do, where nobody can look.
        """
        return ""

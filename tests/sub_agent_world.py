"""What tests of sub-agents and plan sessions stand on: a scripted model over HTTP, a repository, a web on loopback."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from swe_ai_fleet.adapters.openai_model import OpenAIChatModel
from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.sub_agents.toolkit import SubAgentTools
from swe_ai_fleet.domain.budget import Limits
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.sandbox import open_workspace
from swe_ai_fleet.testing import Conversation, Failure, Script, ScriptedModelServer, Turn
from swe_ai_fleet.testing.repositories import make_repository
from swe_ai_fleet.tools import (
    BuiltinSettings,
    BuiltinTools,
    FileTool,
    GitTool,
    HttpPolicy,
    Pipeline,
    ShellTool,
    Toolkit,
)
from tests.tool_doubles import served

FILES = {
    "README.md": "# Billing\n\n## Rounding\n\nInvoice totals are rounded half up to whole cents.\n",
    "billing.py": '"""Money in whole cents."""\n\n\ndef total(prices):\n    return sum(prices)\n',
}
PLANNER, VERIFIER, EXECUTOR = "You make plans for another agent", "You check a plan before", "You turn a plan into"
GENERATOR, RESEARCHER, SESSION = "You make an output in", "You find out on the web", "You plan a piece of work"
LOOK = "You read what an agent wrote"


class Web:
    """A search server and pages, and what they were asked."""

    def __init__(self) -> None:
        self.searches: list[str] = []
        self.pages: list[str] = []
        self.status = 200
        self.port = 0

    def url(self, path: str = "") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def serve(self, request: web.Request) -> web.StreamResponse:
        if request.path != "/search":
            self.pages.append(request.path)
            return web.Response(text=f"This is what {request.path} says.", status=self.status)
        self.searches.append(request.query["q"])
        results = [{"title": "A page", "url": self.url("/page"), "content": "About it."}]
        return web.json_response({"results": results}, status=self.status)


@dataclass(kw_only=True)
class World:
    """Everything a run has."""

    server: ScriptedModelServer
    model: OpenAIChatModel
    workspace: Workspace
    pipeline: Pipeline
    toolkits: dict[str, Toolkit]
    web: Web
    root: Path
    stack: AsyncExitStack
    kits: list[SubAgentTools] = field(default_factory=list[SubAgentTools])

    def sub_agents(self, budget: Budget | None = None, **more: Any) -> SubAgentTools:
        """The sub-agents of one run."""
        budget = budget or Budget(Limits())
        kit = SubAgentTools(
            self.workspace, self.pipeline, model=self.model, budget=budget, toolkits=self.toolkits, **more
        )
        self.kits.append(kit)
        return kit

    def follow(self, conversations: Mapping[str, tuple[Turn | Failure, ...]]) -> None:
        """Turns that could not be written before the world's ports were known."""
        self.server.script = script_of(conversations)

    def requests(self, who: str) -> list[dict[str, Any]]:
        """The model requests of one kind of agent, by the beginning of its system prompt."""
        return [body for body in self.server.bodies if str(body["messages"][0]["content"]).startswith(who)]


def script_of(conversations: Mapping[str, tuple[Turn | Failure, ...]]) -> Script:
    """Turns by the words that a prompt begins with."""
    return Script(conversations=tuple(Conversation(match=who, turns=turns) for who, turns in conversations.items()))


@asynccontextmanager
async def world(
    path: Path, conversations: Mapping[str, tuple[Turn | Failure, ...]], **options: Any
) -> AsyncGenerator[World]:
    """A world in which each kind of agent has the turns of its prompt; `options` are those of the model's server."""
    root, site = _repository(path), Web()
    async with (
        served(site.serve) as site.port,
        ScriptedModelServer(script_of(conversations), keep=500, **options) as server,
        OpenAIChatModel(base_url=server.url) as model,
        open_workspace(root) as workspace,
        AsyncExitStack() as stack,
    ):
        await model.probe()
        pipeline = Pipeline()
        pages = HttpPolicy(allowed_hosts=(), private_hosts=("127.0.0.1",), ports=(site.port,))
        settings = BuiltinSettings(search_url=site.url(), wikipedia_url="", pages=pages)
        kits: tuple[Toolkit, ...] = (
            FileTool(workspace, pipeline),
            GitTool(workspace, pipeline),
            ShellTool(workspace, pipeline),
            BuiltinTools(workspace, pipeline, settings=settings),
        )
        yield World(
            server=server,
            model=model,
            workspace=workspace,
            pipeline=pipeline,
            toolkits={kit.name: kit for kit in kits},
            web=site,
            root=root,
            stack=stack,
        )


def _repository(path: Path) -> Path:
    """A copy of one that is made once for all tests of a run; making it takes much longer."""
    template = path.parent / "repository-template"
    if not template.exists():
        make_repository(template, FILES)
    return Path(shutil.copytree(template, path / "repository")).resolve()


def call(name: str, **arguments: object) -> Turn:
    """A turn that calls one tool."""
    return Turn(tool_calls=((name, arguments),))


def says(**fields: object) -> Turn:
    """A turn that answers with a JSON object."""
    return Turn(content=json.dumps(fields))

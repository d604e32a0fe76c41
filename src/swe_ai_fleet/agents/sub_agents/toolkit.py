"""Sub-agents, and the memory search before them, as operations of a run.

Limits say how many sub-agents a run may have, at which depth, and what each may spend; the role of a run says which are
offered from the start.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, TypeVar

from pydantic import BeforeValidator, Field

from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.structured_output import (
    OutputShape,
    PlanShape,
    ResearchShape,
    ScheduleShape,
    Shape,
    VerdictShape,
    as_texts,
    flat,
    opening,
    reply_in_shape,
)
from swe_ai_fleet.agents.sub_agents.exploring import (
    Explored,
    described,
    explore,
    format_check,
    key_of,
    listed,
    offered,
    researched,
    result,
    sub_agents_of,
    trace_metadata,
    unfinished,
    verdict,
)
from swe_ai_fleet.agents.sub_agents.memory import MemoryResults, MemorySearch, RepositoryMemory
from swe_ai_fleet.codec import to_plain
from swe_ai_fleet.domain.budget import Limits
from swe_ai_fleet.domain.message import Message
from swe_ai_fleet.domain.run import sub_agent_usage
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.domain.tool import Risk, ToolResult
from swe_ai_fleet.ports import ChatModel, Workspace
from swe_ai_fleet.tools.definition import ToolFailure, ToolRefusal
from swe_ai_fleet.tools.operation import Toolkit, operation
from swe_ai_fleet.tools.pipeline import Pipeline

SHARE = 0.5
"""The most of its parent's remaining budget for a sub-agent: the parent must still be able to use its answer."""
MIN_TOKENS = 256
"""With fewer tokens, a sub-agent cannot give a useful answer."""
S = TypeVar("S", bound=Shape)
WEB_OPERATIONS = ("web_search", "read_webpage", "http_get", "search_wikipedia")
LOOKING_OPERATIONS = (
    "files_read_file", "files_search_in_files", "files_list_files", "files_repo_map", "git_status", "git_diff",
    "git_log", "search_memory", "research",
)  # fmt: skip
"""The operations of the verifier, as far as the run has them."""
MAX_GAPS = 40
MAX_RESEARCH_ITERATIONS = 10
MAX_WORDS_CHARS = 40_000
# A sub-agent's budget ends it earlier; this limit also covers its final prompt.
_SECONDS = 900.0
Words = Annotated[str, BeforeValidator(flat), Field(max_length=MAX_WORDS_CHARS)]
Names = Annotated[list[str], BeforeValidator(as_texts)]
SHOWN: Mapping[Role, frozenset[str]] = {Role.ARCHITECT: frozenset({"search_memory", "call_verifier"})}
"""The sub-agents offered at first, by role. Schemas cost tokens in each request, so other roles must ask for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubAgentLimits:
    """Limits of all sub-agents of one run.

    `depth` counts levels below the run: with 1, its sub-agents have none themselves. `number` counts the sub-agents of
    all levels. `each` are the limits of one sub-agent.
    """

    depth: int = 2
    number: int = 8
    each: Limits = field(default_factory=lambda: Limits(max_iterations=5, max_tool_calls=12, timeout_seconds=90.0))


class SubAgentBudget:
    """Counts the sub-agents of a run, of all levels together."""

    def __init__(self, limits: SubAgentLimits, *, used: int = 0) -> None:
        self.limits = limits
        self.used = used

    @contextmanager
    def grant(self, name: str, parent: Budget, *, max_iterations: int = 0) -> Generator[Budget]:
        """The budget of one more sub-agent; `max_iterations` 0: as the limits say.

        Raises ToolRefusal if there may be no more sub-agents, or too few tokens are left.
        """
        if self.used >= self.limits.number:
            raise ToolRefusal(
                f"{name} was not started: this run had its {self.limits.number} sub-agents; go on with what you have"
            )
        limits = _shared(self.limits.each, parent)
        limits = replace(limits, max_iterations=max_iterations or limits.max_iterations)
        if parent.tokens_left is not None and limits.max_tokens < MIN_TOKENS:
            raise ToolRefusal(f"{name} was not started: {parent.tokens_left} tokens are left; go on with what you have")
        self.used += 1
        with parent.child(limits) as budget:
            yield budget


def _shared(limits: Limits, parent: Budget) -> Limits:
    tokens, cost = parent.tokens_left, parent.cost_left
    return replace(
        limits,
        max_tool_calls=min(limits.max_tool_calls, int(parent.tool_calls_left * SHARE)),
        max_tokens=limits.max_tokens if tokens is None else min(limits.max_tokens or tokens, int(tokens * SHARE)),
        max_cost=limits.max_cost if cost is None else min(limits.max_cost or cost, cost * SHARE),
        timeout_seconds=min(limits.timeout_seconds, parent.seconds_left * SHARE),
    )


class SubAgentTools(Toolkit):
    """`search_memory`, `research`, `call_planner`, `call_verifier`, `call_executor` and `call_generator`.

    All but the first are sub-agents: each with its own prompt and short history, a part of the run's budget, and an
    answer in a fixed shape. None has side effects. Their usage is charged to the run's budget; the metadata of a result
    has under `sub_agent` their calls and usage.

    Args:
        pipeline: For the calls of sub-agents too: same policy, audit trail and mask.
        budget: The run's budget; each sub-agent gets a part of what is left when it is called.
        toolkits: The run's own, by name. `research` gets the web operations, `call_verifier` read-only ones.
        without: Names of operations that sub-agents do not get.
        used: How many sub-agents the run had in earlier processes.
        searched: Collects the results of memory searches.
    """

    name: ClassVar[str] = "sub_agents"
    bare: ClassVar[bool] = True

    def __init__(
        self,
        workspace: Workspace,
        pipeline: Pipeline | None = None,
        *,
        model: ChatModel,
        budget: Budget,
        toolkits: Mapping[str, Toolkit] | None = None,
        without: Collection[str] = (),
        memory: MemorySearch | None = None,
        limits: SubAgentLimits | None = None,
        used: int = 0,
        searched: list[MemoryResults] | None = None,
    ) -> None:
        super().__init__(workspace, pipeline)
        self._model = model
        self._budget = budget
        self._toolkits = dict(toolkits or {})
        self._without = frozenset(without)
        self._memory = memory or RepositoryMemory(workspace)
        self._allowance = SubAgentBudget(limits or SubAgentLimits(), used=used)
        self._depth = 1
        self._gaps: dict[str, str] = {}
        self._searched = searched if searched is not None else []

    @property
    def used(self) -> int:
        return self._allowance.used

    @property
    def can_research(self) -> bool:
        return bool(self._web())

    def settle(self, result: ToolResult) -> None:
        """Count a sub-agent of an earlier process, and its usage, from its result."""
        self._allowance.used += sub_agents_of(result)
        self._budget.settle(sub_agent_usage(result))

    def know(self, results: MemoryResults) -> None:
        """Allow research on the gaps of another memory search."""
        self._gaps |= {key_of(gap): gap for gap in results.gaps}

    @operation(read_only=True, locks=(), time_limit_seconds=120.0)
    async def search_memory(
        self,
        entities: Annotated[Names, Field(description="Names to look for exactly as written.")] = [],  # noqa: B006
        queries: Annotated[Names, Field(description="Questions or key words.")] = [],  # noqa: B006
    ) -> ToolResult:
        """Search what the project knows: its documents, docstrings and commit messages.

        Says how much of what was asked it covers, and which of it are gaps.
        """
        results = await self._memory.search(entities, queries)
        texts = (" ".join(text.split()) for text in (*entities, *queries))
        results = replace(results, asked=tuple(dict.fromkeys(text for text in texts if text)))
        self.know(results)
        self._searched.append(results)
        return ToolResult(
            success=True, operation="search_memory", content=described(results), metadata=to_plain(results)
        )

    @operation(read_only=True, risk=Risk.MEDIUM, network=True, locks=(), time_limit_seconds=_SECONDS)
    async def research(
        self,
        gaps: Annotated[Names, Field(description="Gaps that search_memory named, as it wrote them.")],
        max_iterations: Annotated[
            int, Field(description="Turns of the researcher.", ge=1, le=MAX_RESEARCH_ITERATIONS)
        ] = 5,
    ) -> ToolResult:
        """Have the gaps of memory researched on the web; gives a summary, facts and sources."""
        open_gaps = self._researchable(gaps)
        web = self._web()
        if not web:
            raise ToolFailure("nothing here reaches the web; go on with what is known and say what is not")
        messages = opening(
            "sub_research", [("Gaps", "\n".join(f"- {gap}" for gap in open_gaps))], iterations=max_iterations
        )
        explored = await self._explore("research", messages, ResearchShape, self._toolkits, web, max_iterations)
        return researched(open_gaps, explored)

    @operation(read_only=True, locks=(), time_limit_seconds=_SECONDS)
    async def call_planner(
        self,
        goal: Annotated[Words, Field(description="What is to be reached.")],
        context: Annotated[Words, Field(description="What the planner must know; it sees nothing else.")] = "",
        approach: Annotated[Words, Field(description="How to go about it, if that is settled.")] = "",
    ) -> ToolResult:
        """Have a plan made: its steps and the reasoning behind them."""
        sections = [("Goal", goal), ("Context", context), ("Approach", approach)]
        plan, trace = await self._ask("call_planner", opening("sub_planner", sections), PlanShape)
        return result("call_planner", listed(plan.plan, plan.reasoning), plan.model_dump(), trace)

    @operation(read_only=True, locks=(), time_limit_seconds=_SECONDS)
    async def call_verifier(
        self,
        plan: Annotated[Words, Field(description="The plan, whole.")],
        context: Annotated[Words, Field(description="What the verifier must know.")] = "",
        criteria: Annotated[Words, Field(description="What the plan must meet.")] = "",
    ) -> ToolResult:
        """Have a plan checked against the repository before it is carried out."""
        sections = [("Plan", plan), ("Context", context), ("Criteria", criteria)]
        toolkits = self._for_children()
        names = offered(toolkits, self.pipeline, [name for name in LOOKING_OPERATIONS if name not in self._without])
        messages = opening("sub_verifier", sections, looks=bool(names))
        if not names:
            judged, trace = await self._ask("call_verifier", messages, VerdictShape)
            return verdict(judged, trace)
        explored = await self._explore("call_verifier", messages, VerdictShape, toolkits, names)
        trace = trace_metadata("call_verifier", explored.trajectory)
        if explored.conclusion is None:
            return unfinished("call_verifier", explored.trajectory, trace)
        return verdict(explored.conclusion, trace)

    @operation(read_only=True, locks=(), time_limit_seconds=_SECONDS)
    async def call_executor(
        self,
        plan: Annotated[Words, Field(description="The plan, whole.")],
        context: Annotated[Words, Field(description="What the executor must know.")] = "",
        resources: Annotated[Words, Field(description="Tools, people, time and limits there are.")] = "",
    ) -> ToolResult:
        """Have a plan turned into concrete steps and a timeline. It carries nothing out."""
        sections = [("Plan", plan), ("Context", context), ("Resources", resources)]
        schedule, trace = await self._ask("call_executor", opening("sub_executor", sections), ScheduleShape)
        return result("call_executor", listed(schedule.steps, schedule.timeline), schedule.model_dump(), trace)

    @operation(read_only=True, locks=(), time_limit_seconds=_SECONDS)
    async def call_generator(
        self,
        data: Annotated[Words, Field(description="All that the output is made of.")],
        format: Annotated[Words, Field(description="Such as json, csv, markdown.")] = "markdown",  # noqa: A002
    ) -> ToolResult:
        """Have an output made out of data, in a format."""
        messages = opening("sub_generator", [("Format", format), ("Data", data)])
        output, trace = await self._ask("call_generator", messages, OutputShape, check=format_check(format))
        return result("call_generator", output.output, {"output": output.output, "format": format}, trace)

    async def _explore(
        self,
        name: str,
        messages: Sequence[Message],
        shape: type[S],
        toolkits: Mapping[str, Toolkit],
        names: Sequence[str],
        max_iterations: int = 0,
    ) -> Explored[S]:
        """Run a sub-agent that explores with these operations; its own sub-agents share its budget."""
        with self._allowance.grant(name, self._budget, max_iterations=max_iterations) as budget:
            if isinstance(below := toolkits.get(self.name), SubAgentTools):
                below._budget = budget
            return await explore(
                self._model, messages, shape, toolkits=toolkits, pipeline=self.pipeline, names=names, budget=budget
            )

    async def _ask(
        self,
        name: str,
        messages: Sequence[Message],
        shape: type[S],
        *,
        check: Callable[[S], str] | None = None,
    ) -> tuple[S, Mapping[str, object]]:
        with self._allowance.grant(name, self._budget) as budget:
            answer = await reply_in_shape(self._model, messages, shape, budget=budget, check=check)
            usage = budget.total()
        return answer, {"name": name, "iterations": usage.model_calls, "usage": to_plain(usage)}

    def _web(self) -> tuple[str, ...]:
        return offered(self._toolkits, self.pipeline, [name for name in WEB_OPERATIONS if name not in self._without])

    def _researchable(self, gaps: Sequence[str]) -> list[str]:
        """The gaps that a memory search named. Raises ToolFailure if there are none."""
        open_gaps = {key_of(gap): self._gaps[key_of(gap)] for gap in gaps if key_of(gap) in self._gaps}
        if not open_gaps:
            all_gaps = "; ".join(self._gaps.values())
            raise ToolFailure(
                f"only gaps that search_memory named are researched; open are: {all_gaps}"
                if all_gaps
                else "only gaps that search_memory named are researched, and it named none: search memory first"
            )
        return list(open_gaps.values())[:MAX_GAPS]

    def _for_children(self) -> dict[str, Toolkit]:
        """The toolkits of a sub-agent; with sub-agents themselves only above the deepest level."""
        kits = {name: kit for name, kit in self._toolkits.items() if name != self.name}
        if self._depth < self._allowance.limits.depth:
            below = SubAgentTools(
                self.workspace,
                self.pipeline,
                model=self._model,
                budget=self._budget,
                toolkits=kits,
                without=self._without,
                memory=self._memory,
            )
            below._allowance, below._depth = self._allowance, self._depth + 1
            kits[self.name] = below
        return kits


def idle_sub_agents(
    role: Role, asked: Collection[str] = (), *, can_research: bool = True
) -> tuple[frozenset[str], frozenset[str]]:
    """(idle, unlisted) for a toolbox: operations not offered at first, and those of them that it does not even list.

    Research is unlisted unless the run `can_research`, that is, has web operations.
    """
    names = frozenset(SubAgentTools.definitions)
    shown = names if SubAgentTools.name in asked else SHOWN.get(role, frozenset()) | names.intersection(asked)
    idle = names - shown
    return idle, frozenset[str]() if can_research else idle & {"research"}

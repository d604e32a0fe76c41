"""The tools of a chat's model: show executions, propose a task, search and store memories; and how a yes is recognised.

The tools of one turn share a `TurnContext`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from swe_ai_fleet.agents.prompting import fenced
from swe_ai_fleet.agents.recollections import FleetMemory
from swe_ai_fleet.agents.references.naming import fields_of, title_of
from swe_ai_fleet.agents.sub_agents.exploring import described
from swe_ai_fleet.agents.sub_agents.memory import MemoryResults
from swe_ai_fleet.codec import from_plain, to_plain
from swe_ai_fleet.conversations.document import Table
from swe_ai_fleet.domain.json_values import is_mapping, mapping, mappings
from swe_ai_fleet.domain.memory import Memory, MemoryScope
from swe_ai_fleet.domain.text import counted, one_line, visible
from swe_ai_fleet.domain.tool import Risk, ToolResult
from swe_ai_fleet.ports import Memories, SecretMask
from swe_ai_fleet.runtime.execution_tools import FleetView, ListExecutions, Proposal, ShowExecution
from swe_ai_fleet.tools.base_tool import BaseTool, ToolParameter, presented
from swe_ai_fleet.tools.definition import ToolFailure

_YES = frozenset(
    {
        "yes", "y", "yes please", "yep", "yeah", "sure", "ok", "okay", "go", "go ahead", "do it", "start", "start it",
        "please do", "confirm", "confirmed", "yes start it", "yes go ahead", "yes do it", "ok start it",
        "please start it",
        "ok go ahead", "sure go ahead", "yes please start it",
    }
)  # fmt: skip
_NO = frozenset(
    {
        "no", "n", "nope", "no thanks", "no thank you", "don't", "dont", "do not", "cancel", "stop", "never mind",
        "nevermind", "not now", "don't start it", "do not start it", "forget it",
    }
)  # fmt: skip
_SAID = re.compile(r"[a-z' ,.!]+")
"""The characters of a decision: a question ("start it?"), a quotation or a symbol is no decision."""
_MARKS = re.compile(r"[,.! ]+")
_REMEMBER = re.compile(
    r"^\s*(?:(?:please|also|and|ok|okay|hi|hello)[,!]? +)*(?:(?:can|could|would) you (?:please )?)?"
    r"(?:remember|note|keep in mind|don't forget|do not forget|memori[sz]e|make a note|take note|bear in mind)"
    r"(?: that|:| of the fact that)?\s+(?P<what>\S.*)",
    re.IGNORECASE | re.DOTALL,
)
_ASKED_ELSEWHERE = re.compile(
    r"\b(?:remember (?:this|that|it)|keep (?:this|that|it) in mind|don't forget (?:this|that|it)|"
    r"note (?:this|that|it) down|"
    r"memori[sz]e (?:this|that|it)|(?:save|keep|store|note) (?:this|that|it) for (?:next time|later|the future))\b",
    re.IGNORECASE,
)
_NOT_TO = re.compile(
    r"\b(?:do(?:n't| not) remember|can(?:'t|not) remember|do you remember|remember when)\b", re.IGNORECASE
)
MAX_REMEMBERED_CHARS = 2_000


def decision(text: str) -> Literal["yes", "no", ""]:
    """The decision of a message as a whole; empty where it says anything else."""
    if len(text) > 60:
        return ""
    text = _straight(text).strip()
    lowered = text.lower() if text.isascii() else ""  # lower() turns some other characters into ASCII letters
    if not _SAID.fullmatch(lowered):
        return ""
    words = _MARKS.sub(" ", lowered).strip()
    if words in _YES:
        return "yes"
    return "no" if words in _NO else ""


def to_remember(text: str) -> str:
    """The text after an opening request to remember, in the message's own words; empty without one."""
    text = _straight(text)
    if _NOT_TO.search(text):
        return ""
    match = _REMEMBER.match(text[: 2 * MAX_REMEMBERED_CHARS])
    if match is None or match["what"].rstrip().endswith("?"):
        return ""
    fact = match["what"].strip()
    # "Remember to" is a task for later, "remember me" a greeting: only a statement is a fact.
    return fact[:MAX_REMEMBERED_CHARS] if len(fact.split()) >= 2 else ""


def asks_to_remember(text: str) -> bool:
    """Whether a message asks for something to be remembered."""
    text = _straight(text)
    if _NOT_TO.search(text):
        return False
    return bool(to_remember(text)) or bool(_ASKED_ELSEWHERE.search(_unquoted(text)))


def _unquoted(text: str) -> str:
    """The text without quotations and code, which are not the person's own words."""
    lines: list[str] = []
    code = False
    for line in text.splitlines():
        if line.lstrip().startswith(("```", "~~~")):
            code = not code
        elif not code and not line.lstrip().startswith(">"):
            lines.append(line)
    return "\n".join(lines)


def _straight(text: str) -> str:
    return text.replace("\u2019", "'")


PROPOSED = "proposed"
"""The metadata key of a result under which it has the task that it proposes."""
MAX_DESCRIPTION_CHARS = 8_000
_TEXT_CHARS = 300
_NOT_SHOWN = frozenset("`\n\t")
_COLUMNS = {
    "list_executions": ("status", "description", "execution_id", "started_at"),
    "show_execution": ("name", "outcome", "message"),
}
"""The columns of the fleet's tools; other tools get all fields of their records as columns."""
_MAX_RECORDS, _MAX_DEPTH = 200, 3
_TAG = re.compile(r"<(?=[A-Za-z/!?])")


@dataclass(slots=True, kw_only=True)
class TurnContext:
    """The state that the tools of one turn share: the message, the proposal, the memories that were stored."""

    text: str
    scope: MemoryScope
    source: str
    now: str
    nonce: str
    proposal: Proposal | None = None
    remembered: list[str] = field(default_factory=list[str])


class SearchMemory(BaseTool):
    """`search_memory(entities=[], queries=[]) -> {coverage, content, gaps, sources}` of the session's namespaces."""

    name = "search_memory"
    description = (
        "Search what was remembered in earlier conversations and runs. Says how much of what was asked it covers, and "
        "which of it are gaps. Memories are notes that may be wrong."
    )
    parameters = (
        ToolParameter("entities", "array", "Names to look for as written.", required=False, items="string"),
        ToolParameter("queries", "array", "Questions or key words.", required=False, items="string"),
    )
    read_only = True
    risk = Risk.LOW
    network = False
    locks = frozenset[str]()

    def __init__(self, memories: Memories, context: TurnContext, mask: SecretMask) -> None:
        self._memory = FleetMemory(memories, context.scope, mask=mask)

    async def execute(self, entities: Sequence[str] = (), queries: Sequence[str] = ()) -> dict[str, object]:
        """The results. Raises FleetError."""
        if not entities and not queries:
            raise ToolFailure("nothing is asked; give entities or queries")
        return dict(mapping(to_plain(await self._memory.search(entities, queries))))

    def present(self, value: object) -> ToolResult:
        content = described(from_plain(MemoryResults, value))
        return replace(presented(self.name, value), content=content)


class Remember(BaseTool):
    """`remember() -> {remembered}`: stores the text that the person asked to be remembered, in the person's own words.

    It takes no text: text of a page or a file must not get into memory through the model.
    """

    name = "remember"
    description = "Keep the person's last message in memory, word for word. Only where the person asked to remember it."
    parameters = ()
    risk = Risk.LOW
    network = False
    locks = frozenset({"memory"})

    def __init__(self, memories: Memories, context: TurnContext) -> None:
        self._memories = memories
        self._context = context

    async def execute(self) -> dict[str, object]:
        """The stored text. Raises ToolFailure where nobody asked for it, another FleetError where storing fails."""
        if not asks_to_remember(self._context.text):
            raise ToolFailure("the person did not ask for anything to be remembered")
        return {"remembered": await keep(self._memories, self._context)}


async def keep(memories: Memories, context: TurnContext) -> str:
    """Store the person's text in the first namespace of the session; returns the text. Raises FleetError."""
    text = to_remember(context.text) or context.text[:2_000]
    if text not in context.remembered:
        memory = Memory(
            namespace=context.scope.namespaces[0],
            text=text,
            tenant=context.scope.tenant,
            source=context.source,
            created_at=context.now,
        )
        await memories.remember(memory)
        context.remembered.append(text)
    return text


class ProposeTask(BaseTool):
    """`start_task(description, repository, ref="", agents=0)`: proposes it; only the person's yes starts it."""

    name = "start_task"
    description = (
        "Propose a coding task for the fleet. Nothing is started: the person is shown the proposal and must say yes "
        "in the next message."
    )
    parameters = (
        ToolParameter("description", "string", "What is to be done, complete in itself."),
        ToolParameter("repository", "string", "Path or URL of the repository."),
        ToolParameter("ref", "string", "Branch, tag or commit to start from.", required=False),
        ToolParameter("agents", "integer", "How many agents solve it.", required=False),
    )
    # A proposal changes nothing, so an interrupted call is repeated.
    read_only = True
    risk = Risk.MEDIUM
    network = False
    locks = frozenset[str]()

    def __init__(self, context: TurnContext) -> None:
        self._context = context

    async def execute(self, description: str, repository: str, ref: str = "", agents: int = 0) -> dict[str, object]:
        """The proposal. Raises ToolFailure for an invalid task, and for a second one in a turn."""
        if not description.strip() or not repository.strip():
            raise ToolFailure("a task has a description and a repository; ask the person for what is missing")
        # The person confirms the text that is shown, so it must be complete and without invisible characters.
        description = visible(description)
        for name, text in (("repository", repository), ("ref", ref)):
            if len(text) > _TEXT_CHARS or visible(text) != text or set(text) & _NOT_SHOWN:
                raise ToolFailure(f"the {name} is too long, or has characters that cannot be shown")
        if len(description) > MAX_DESCRIPTION_CHARS:
            raise ToolFailure(f"the description is too long; at most {MAX_DESCRIPTION_CHARS} characters")
        if not 0 <= agents <= 64:
            raise ToolFailure("agents goes from 1 to 64; leave it out for the usual number")
        if self._context.proposal is not None:
            raise ToolFailure("one task is proposed in this turn already; propose the other one after the person's yes")
        proposal = Proposal(
            description=description.strip(), repository=repository.strip(), ref=ref.strip(), agents=agents
        )
        self._context.proposal = proposal
        return dict(mapping(to_plain(proposal)))

    def present(self, value: object) -> ToolResult:
        reply = {
            "status": "proposed, not started",
            "next": "The person sees the proposal below your answer and decides. Do not say that it is started.",
        }
        return replace(presented(self.name, reply), metadata={PROPOSED: value})


def proposal_in(results: Iterable[ToolResult]) -> Proposal | None:
    """The task that a turn proposed, from the results of its calls."""
    plain = next((result.metadata[PROPOSED] for result in results if PROPOSED in result.metadata), None)
    return from_plain(Proposal, plain) if plain is not None else None


def fleet_tools(
    context: TurnContext, *, fleet: FleetView | None, proposes: bool, memories: Memories | None, mask: SecretMask
) -> list[BaseTool]:
    """The tools of one turn, in an order that never changes."""
    tools: list[BaseTool] = []
    if fleet is not None:
        tools += [ListExecutions(fleet), ShowExecution(fleet)]
    if proposes:
        tools.append(ProposeTask(context))
    if memories is not None and context.scope.namespaces:
        tools += [SearchMemory(memories, context, mask), Remember(memories, context)]
    return tools


def table_of(operation: str, result: ToolResult) -> Table | None:
    """The table of a result: its first list of records; None where there is none."""
    fields: Mapping[str, object] = fields_of(result) if result.success else {}
    key, records = _records(fields, 0) or ("", [])
    columns = _COLUMNS.get(operation) or tuple(dict.fromkeys(name for record in records for name in record))
    cells = [{name: _cell(record.get(name)) for name in columns} for record in records[:_MAX_RECORDS]]
    columns = tuple(name for name in columns if any(record[name] not in (None, "") for record in cells))
    if not columns:
        return None
    numbered = [
        {"#": number, **{name: record[name] for name in columns}} for number, record in enumerate(cells, start=1)
    ]
    return Table.of(numbered, title=title_of(key, operation, str(result.metadata.get("server", ""))))


def _records(fields: Mapping[str, object], depth: int) -> tuple[str, Sequence[Mapping[str, object]]] | None:
    """The outermost list of records in a result, and its key."""
    for key, part in fields.items():
        if records := mappings(part):
            return key, records
    if depth < _MAX_DEPTH:
        for part in fields.values():
            if is_mapping(part) and (below := _records(part, depth + 1)):
                return below
    return None


def _cell(value: object) -> object:
    """The content of a cell: of a record its name, of a list nothing."""
    if is_mapping(value):
        return next((value[key] for key in ("symbol", "name", "title", "id") if isinstance(value.get(key), str)), "")
    return one_line(value, _TEXT_CHARS) if isinstance(value, str) else "" if isinstance(value, list) else value


def proposed(proposal: Proposal) -> str:
    """The question to the person before a task is started, as Markdown."""
    facts = [f"repository `{proposal.repository}`"]
    facts += [f"from `{proposal.ref}`"] if proposal.ref else []
    facts += [counted(proposal.agents, "agent")] if proposal.agents else []
    return (
        f"**Proposed task** ({', '.join(facts)}):\n\n{fenced(proposal.description)}\n\n"
        "Say **yes** to start it; anything else leaves it."
    )


def untagged(answer: str) -> str:
    """An answer without HTML tags, which could hide the text below it from the person."""
    return _TAG.sub("< ", answer)

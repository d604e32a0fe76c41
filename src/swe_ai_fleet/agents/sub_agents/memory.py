"""Memory of a run: the interface of memory searches, the search of a repository, and facts for later runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Protocol

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from swe_ai_fleet.codec import from_plain
from swe_ai_fleet.domain.approval import MemoryFindings
from swe_ai_fleet.domain.command import Command, CommandResult
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.event import ToolFinished
from swe_ai_fleet.domain.memory import memory_id
from swe_ai_fleet.domain.tool import PolicyDecision, ToolResult
from swe_ai_fleet.domain.trajectory import Step
from swe_ai_fleet.ports import SecretMask, Workspace
from swe_ai_fleet.sandbox import concealment, jail
from swe_ai_fleet.tools.definition import ToolFailure, ToolTimeout
from swe_ai_fleet.tools.operation import Toolkit, operation
from swe_ai_fleet.tools.pipeline import Pipeline
from swe_ai_fleet.tools.truncation import beginning

THRESHOLD = 0.5
"""The least score of a passage that answers a query. 1.0 is a passage of average length with each of its words once."""
TIMEOUT_SECONDS = 30.0
MAX_ASKED = 40
MAX_ASKED_CHARS = 500
_READ_SECONDS = 15.0
_HITS = 3
_OUTPUT_LIMIT = 512 * 1024
_START = """\
import json, os, runpy, sys
places, request = json.loads(sys.argv[1])
runpy.run_path(next(filter(os.path.exists, places)))["main"](request)
"""
_Text = Annotated[str, Field(max_length=4_000)]
MAX_CONTENT_CHARS = 16_000
MAX_NAMED = 100
"""The most gaps, and the most sources, shown to people."""
_NAME_CHARS = 500
_log = structlog.get_logger(__name__)
REMEMBER = "remember"
MAX_FACTS = 10
MAX_FACT_CHARS = 1_000
_NOTED = "remembered"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryResults:
    """The results of a memory search. All text is untrusted.

    `coverage` is the share of entities and queries that were found, in percent, None without any; `gaps` are the
    others. `content` has the passages, each after its source; `sources` name them (`path#heading`, `commit <id>`).
    `asked` are all entities and queries, if the caller of the search filled them in.
    """

    coverage: float | None = None
    content: str = ""
    gaps: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()


class MemorySearch(Protocol):
    """A search over memories or documents."""

    async def search(self, entities: Sequence[str], queries: Sequence[str]) -> MemoryResults:
        """Search for entities, exactly as written, and for answers to queries. Raises FleetError.

        Without entities and queries, nothing is searched and there are no gaps.
        """
        ...


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Passage(_Strict):
    source: _Text
    text: _Text


class _Answer(_Strict):
    asked: str
    passages: list[int]


class _Recalled(_Strict):
    answers: list[_Answer]
    passages: list[_Passage] = Field(max_length=MAX_ASKED * _HITS)


class RepositoryMemory:
    """Searches README, documents, AGENTS.md, docstrings and commit messages of a workspace; a `MemorySearch`.

    Entities are matched literally, except for case; queries by BM25 (see `recall`). The search runs in the workspace's
    sandbox and caches nothing.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    async def search(self, entities: Sequence[str], queries: Sequence[str]) -> MemoryResults:
        """The passages of the repository. Raises ToolFailure for invalid entities and queries, and failed searches."""
        names, questions = asked_texts(entities, "an entity"), asked_texts(queries, "a query")
        if not names and not questions:
            return MemoryResults()
        recalled = await self._recall(names, questions)
        answered = {answer.asked for answer in recalled.answers if answer.passages}
        texts = [*names, *(question for question in questions if question not in names)]
        gaps = tuple(text for text in texts if text not in answered)
        return MemoryResults(
            coverage=round(100 * (len(texts) - len(gaps)) / len(texts), 1),
            content="\n\n".join(f"[{passage.source}]\n{passage.text}" for passage in recalled.passages),
            gaps=gaps,
            sources=tuple(dict.fromkeys(passage.source for passage in recalled.passages)),
        )

    async def _recall(self, entities: Sequence[str], queries: Sequence[str]) -> _Recalled:
        request = {
            "entities": entities,
            "queries": queries,
            "threshold": THRESHOLD,
            "hits": _HITS,
            "seconds": _READ_SECONDS,
        }
        inside = f"{concealment.code().inside}/agents/sub_agents/recall.py"
        places = [inside, str(Path(__file__).with_name("recall.py"))]
        python = jail.python(self._workspace.environment)
        result = await self._workspace.run(
            Command(
                # Isolated and without site: only the standard library and the named program can be imported.
                argv=(*python, "-I", "-S", "-B", "-c", _START, json.dumps([places, request])),
                timeout_seconds=TIMEOUT_SECONDS,
                output_limit=_OUTPUT_LIMIT,
            )
        )
        return _read(result)


def asked_texts(texts: Sequence[str], kind: str) -> list[str]:
    unique = list(dict.fromkeys(" ".join(text.split()) for text in texts))
    unique = [text for text in unique if text]
    if len(unique) > MAX_ASKED:
        raise ToolFailure(f"{len(unique)} were asked for at once; at most {MAX_ASKED} are searched")
    for text in unique:
        if len(text) > MAX_ASKED_CHARS:
            raise ToolFailure(f"{kind} has {len(text)} characters; at most {MAX_ASKED_CHARS} are searched for")
    return unique


def _read(result: CommandResult) -> _Recalled:
    if result.timed_out:
        raise ToolTimeout(f"the search did not end within {TIMEOUT_SECONDS:g} seconds")
    if not result.ok:
        stderr = result.stderr.text().strip().rpartition("\n")[2][:300]
        raise ToolFailure(f"the search failed: {stderr or f'exit code {result.exit_code}'}")
    try:
        return _Recalled.model_validate_json(result.stdout.head + result.stdout.tail)
    except ValidationError:
        raise ToolFailure("the search failed: the program in the sandbox gave no proper answer") from None


def findings(searches: Iterable[MemoryResults], mask: SecretMask) -> MemoryFindings | None:
    """The results of all searches together; None without any. A text that one search found is no gap."""
    answered: dict[str, bool] = {}
    passages: dict[str, None] = {}
    sources: dict[str, None] = {}
    for search in searches:
        gaps = frozenset(search.gaps)
        for text in search.asked or search.gaps:
            answered[text] = answered.get(text, False) or text not in gaps
        passages |= dict.fromkeys([search.content] if search.content else [])
        sources |= dict.fromkeys(search.sources)
    if not answered:
        return None
    missing = [text for text, is_answered in answered.items() if not is_answered]
    return MemoryFindings(
        coverage=round(100 * (len(answered) - len(missing)) / len(answered), 1),
        gaps=tuple(mask(text)[:_NAME_CHARS] for text in missing[:MAX_NAMED]),
        sources=tuple(mask(text)[:_NAME_CHARS] for text in list(sources)[:MAX_NAMED]),
        content=beginning(mask("\n\n".join(passages)), MAX_CONTENT_CHARS),
    )


def searches_in(steps: Sequence[Step]) -> list[MemoryResults]:
    results: list[MemoryResults] = []
    for result in (observation.result for step in steps for observation in step.observations):
        if result.success and result.operation == "search_memory":
            # The metadata of a chat's tool of that name, or of another version, may differ.
            with suppress(ValueError):
                results.append(from_plain(MemoryResults, dict(result.metadata)))
    return results


async def asked_about(memory: MemorySearch, entities: Sequence[str]) -> list[MemoryResults]:
    """The search for the entities of a task; empty if it has none or the search fails."""
    if not entities:
        return []
    try:
        recollection = await memory.search(entities, ())
    except FleetError as fault:
        _log.warning("memory.entities_not_asked", reason=fault.message[:200])
        return []
    return [replace(recollection, asked=tuple(entities))]


class RememberingTools(Toolkit):
    """`remember`: an agent's note for later runs.

    It stores nothing itself. The note is in the run's log, under `remembered` in the metadata of the call's result, and
    becomes a memory if the run's candidate wins.
    """

    name: ClassVar[str] = "remembering"
    bare: ClassVar[bool] = True

    def __init__(self, workspace: Workspace, pipeline: Pipeline | None = None, *, noted: Iterable[str] = ()) -> None:
        super().__init__(workspace, pipeline)
        self._noted = {_key(fact) for fact in noted}

    @operation(read_only=True, locks=(), time_limit_seconds=10.0)
    async def remember(
        self,
        fact: Annotated[
            str,
            Field(description="One fact, whole and by itself; no secrets.", min_length=1, max_length=MAX_FACT_CHARS),
        ],
    ) -> ToolResult:
        """Note a fact about this project that later runs should know, such as how its tests are run or why something
        is as it is. Not what you did: that is recorded anyway. It is kept if your solution is chosen."""
        text = fact.strip()
        if not text:
            raise ToolFailure("the fact is empty")
        if _key(text) in self._noted:
            return ToolResult(success=True, operation=REMEMBER, content="That is noted already.")
        if len(self._noted) >= MAX_FACTS:
            raise ToolFailure(f"{MAX_FACTS} facts are noted, and more are not kept; go on with the task")
        self._noted.add(_key(text))
        room = MAX_FACTS - len(self._noted)
        return ToolResult(
            success=True, operation=REMEMBER, content=f"Noted; {room} more may be.", metadata={_NOTED: text}
        )


def noted_in(steps: Iterable[Step]) -> tuple[str, ...]:
    results = (observation.result for step in steps for observation in step.observations)
    return tuple(fact for result in results if result.operation == REMEMBER and (fact := _fact(result)))


def noted_by(body: ToolFinished) -> str:
    """The fact that a call noted; empty if it noted none."""
    remembers = body.entry.tool == RememberingTools.name and body.entry.operation == REMEMBER
    return _fact(body.result) if remembers and body.entry.decision is PolicyDecision.ALLOWED else ""


def _fact(result: ToolResult) -> str:
    fact = result.metadata.get(_NOTED)
    return fact if result.success and isinstance(fact, str) else ""


def _key(fact: str) -> str:
    return memory_id("", "", fact)

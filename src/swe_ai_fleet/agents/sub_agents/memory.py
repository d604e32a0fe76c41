"""Memory search: the interface between agents that ask and whatever remembers, and a repository as a memory.

A repository's memory is its documents, docstrings and history.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from swe_ai_fleet.domain.command import Command, CommandResult
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.sandbox import concealment, jail
from swe_ai_fleet.tools.definition import ToolFailure, ToolTimeout


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryResults:
    """What a search of memory gave. All text is untrusted.

    `coverage` is the share, in percent, of the entities and queries that were found, None where nothing was asked, so
    that it is not known; `gaps` are the others. `content`
    holds the passages, each behind its source; `sources` name them (`path#heading`, `commit <id>`). `asked` is all that
    was asked, as far as whoever searched says so.
    """

    coverage: float | None = None
    content: str = ""
    gaps: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()


class MemorySearch(Protocol):
    """Something that can be asked what is known."""

    async def search(self, entities: Sequence[str], queries: Sequence[str]) -> MemoryResults:
        """Look for entities as they are written and for what answers the queries. Raises FleetError.

        Where nothing is asked, nothing is searched and nothing is missing.
        """
        ...


THRESHOLD = 0.5
"""From this score on a passage answers a query. 1.0 is a passage of average length with each of its words once."""
TIMEOUT_SECONDS = 30.0
MAX_ASKED = 40
MAX_ASKED_CHARS = 500
_READ_SECONDS = 15.0
_HITS = 3
_OUTPUT_LIMIT = 512 * 1024
_START = """\
import json, os, sys
from importlib.util import module_from_spec, spec_from_file_location
code, request = json.loads(sys.argv[1])
code = next(filter(os.path.isdir, code))
spec = spec_from_file_location("recall", code + "/__init__.py", submodule_search_locations=[code])
sys.modules["recall"] = module_from_spec(spec)
from recall.program import main
main(json.dumps(request))
"""
_Text = Annotated[str, Field(max_length=4_000)]


class _Passage(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    source: _Text
    text: _Text


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    asked: str
    passages: list[int]


class _Recalled(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    found: list[_Answer]
    passages: list[_Passage] = Field(max_length=MAX_ASKED * _HITS)
    searched: int


class RepositoryMemory:
    """Searches README, documents, AGENTS.md, docstrings and commit messages of a workspace; a `MemorySearch`.

    Entities are matched as they are written, upper and lower case aside; queries by BM25 (see `recall.ranking`). It
    runs in the workspace's sandbox and keeps nothing between two searches.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    async def search(self, entities: Sequence[str], queries: Sequence[str]) -> MemoryResults:
        """What the repository says. Raises ToolFailure for what can't be asked, and where the search fails."""
        wanted, questions = asked_texts(entities, "an entity"), asked_texts(queries, "a query")
        if not wanted and not questions:
            return MemoryResults()
        recalled = await self._recall(wanted, questions)
        answered = {answer.asked for answer in recalled.found if answer.passages}
        asked = [*wanted, *(question for question in questions if question not in wanted)]
        gaps = tuple(text for text in asked if text not in answered)
        return MemoryResults(
            coverage=round(100 * (len(asked) - len(gaps)) / len(asked), 1),
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
        inside = f"{concealment.code().inside}/agents/sub_agents/recall"
        code = [inside, str(Path(__file__).with_name("recall"))]
        python = jail.python(self._workspace.environment)
        result = await self._workspace.run(
            Command(
                # Isolated and without site: what can be imported is the standard library and what is named here.
                argv=(*python, "-I", "-S", "-B", "-c", _START, json.dumps([code, request])),
                timeout_seconds=TIMEOUT_SECONDS,
                output_limit=_OUTPUT_LIMIT,
            )
        )
        return _read(result)


def asked_texts(texts: Sequence[str], kind: str) -> list[str]:
    """The texts without blanks and repetitions. Raises ToolFailure for too many or too long ones."""
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

"""The function caller: it solves tasks by calling functions, and tells of it as it goes.

References such as "that file" and "the second one" mean what earlier answers named.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path

from swe_ai_fleet.agents.function_calling.attachments import checked_files
from swe_ai_fleet.agents.function_calling.conversation import read_conversation, with_system, write_conversation
from swe_ai_fleet.agents.function_calling.function_run import (
    SYSTEM_PROMPT,
    TOOLS_PLACEHOLDER,
    FunctionRun,
    Request,
    documentation,
)
from swe_ai_fleet.agents.function_calling.responses import AgentResponse, AgentTask
from swe_ai_fleet.agents.function_calling.setup import Setup
from swe_ai_fleet.domain.message import AssistantMessage, Message
from swe_ai_fleet.ports import ChatModel

MAX_CHARS = 20_000
"""Of the earlier texts, the newest last; what lies before is not looked at."""
MAX_ENTITIES = 20
_MAX_NAME_CHARS = 200
_ITEM = re.compile(r"[ \t]{0,8}(?:[-*][ \t])?\(?(\d{1,3})[.)][ \t]+(\S.*)")
_FILE = re.compile(r"(?:~?\.{0,2}/)?(?:[\w@+-][\w.@+-]*/)*[\w@+-][\w.@+-]*\.[A-Za-z][A-Za-z0-9]{0,7}")
_WRAPPING = "`'\"()[]{}<>,;:!?*"
_NO_FILES = (".com", ".org", ".net", ".io", "e.g", "i.e", "a.m", "p.m")
_ORDINALS = {
    word: number
    for number, words in enumerate(
        (
            ("first", "1st"), ("second", "2nd"), ("third", "3rd"), ("fourth", "4th"), ("fifth", "5th"),
            ("sixth", "6th"), ("seventh", "7th"), ("eighth", "8th"), ("ninth", "9th"), ("tenth", "10th"),
        ),
        start=1,
    )
    for word in words
}  # fmt: skip
_NTH = re.compile(
    rf"\bthe ({'|'.join(_ORDINALS)}|last)"
    r"(?: (one|item|file|result|option|entry|point)\b|(?=\s*(?:[.,;:!?)]|and\b|or\b|$)))",
    re.IGNORECASE,
)
_NUMBERED = re.compile(r"\b(?:number|item|option|no\.) ?(\d{1,3})\b|(?<!\w)#(\d{1,3})\b", re.IGNORECASE)
_THAT = re.compile(r"\b(?:that|this|the same) (file|item|one|result)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A phrase of a request, as it was written, and what it can only mean."""

    phrase: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """The things that earlier texts named: files, oldest first, and the items of the last numbered list."""

    files: tuple[str, ...] = ()
    items: tuple[tuple[int, str], ...] = ()

    @classmethod
    def of(cls, texts: Sequence[str]) -> References:
        """What these texts name, the newest last."""
        text = "\n".join(texts)[-MAX_CHARS:]
        files: dict[str, None] = {}
        for word in text.split():
            name = word.strip(_WRAPPING).rstrip(".")
            if len(name) <= _MAX_NAME_CHARS and "://" not in name and _is_file(name):
                files.setdefault(name)
        return cls(files=tuple(files)[-MAX_ENTITIES:], items=_last_list(text))

    def section(self) -> str:
        """The things as a section for the model; empty where there are none."""
        lines = [f"- file: {name}" for name in self.files]
        lines += [f"- item {number}: {label}" for number, label in self.items]
        return "\n".join(["# Named before", *lines]) if lines else ""

    def resolve(self, request: str) -> tuple[Resolved, ...]:
        """The phrases of a request that can mean one thing only, in their order.

        Ordinals count the items of the last numbered list, or the files where there is no such list ("the second
        file" counts the files in any case); "that file" means a file that was the only one named. A phrase that could
        mean several things, or nothing, is left alone.
        """
        found: dict[int, Resolved] = {}
        for match in _NTH.finditer(request[:MAX_CHARS]):
            of_files = (match[2] or "").lower() == "file" or not self.items
            self._add(found, match, self._nth(match[1].lower(), of_files=of_files))
        for match in _NUMBERED.finditer(request[:MAX_CHARS]):
            self._add(found, match, dict(self.items).get(int(match[1] or match[2]), ""))
        for match in _THAT.finditer(request[:MAX_CHARS]):
            self._add(found, match, self._only(match[1].lower()))
        return tuple(found[start] for start in sorted(found))

    def _nth(self, word: str, *, of_files: bool) -> str:
        named = dict(enumerate(self.files, start=1)) if of_files else dict(self.items)
        if not named:
            return ""
        return named.get(max(named) if word == "last" else _ORDINALS[word], "")

    def _only(self, kind: str) -> str:
        items = tuple(label for _, label in self.items)
        named = self.files if kind == "file" else items if kind == "item" else self.files + items
        return named[0] if len(named) == 1 else ""

    @staticmethod
    def _add(found: dict[int, Resolved], match: re.Match[str], meaning: str) -> None:
        if meaning:
            found.setdefault(match.start(), Resolved(phrase=match[0], meaning=meaning))


def _is_file(name: str) -> bool:
    return _FILE.fullmatch(name) is not None and not name.lower().endswith(_NO_FILES)


def _last_list(text: str) -> tuple[tuple[int, str], ...]:
    """The items of the last list that counts up from its first number; lines between them belong to an item."""
    items: list[tuple[int, str]] = []
    for line in text.splitlines():
        match = _ITEM.match(line[: 2 * _MAX_NAME_CHARS])
        if match is None:
            continue
        number = int(match[1])
        if not items or number != items[-1][0] + 1:
            items = []
        items.append((number, match[2].strip()[:_MAX_NAME_CHARS]))
    return tuple(items[:MAX_ENTITIES])


_MAX_PREVIOUS_CHARS = 20_000


class FunctionCaller:
    """An agent over any `ChatModel`; it remembers its last task, and several runs may go on at a time.

    Args:
        setup: The functions and the rules.
        system_prompt: What the model is told first; `{tools}` in it gives way to the documentation of the tools.
    """

    def __init__(self, setup: Setup, *, system_prompt: str = SYSTEM_PROMPT) -> None:
        self._setup = setup
        self._system_prompt = system_prompt
        self._previous: AgentTask | None = None
        self.task: AgentTask | None = None
        """The task that was begun last."""
        self.messages: list[dict[str, object]] = []
        """The conversation of the run that ended last, as OpenAI's messages."""

    async def run(
        self,
        model: ChatModel,
        task: str,
        files: Sequence[str | Path] | None = None,
        *,
        max_iterations: int | None = None,
        refine_final_answer: bool = True,
        use_planning: bool = True,
        recurrent_mode: bool = False,
        loop_threshold: int | None = None,
        chat_history: Sequence[object] | None = None,
    ) -> AsyncGenerator[AgentResponse, None]:
        """Carry out a task; `FunctionCallingAgent.run` says what the arguments mean."""
        request = self._request(
            task,
            files,
            max_iterations=max_iterations,
            refine=refine_final_answer,
            plan=use_planning,
            recurrent=recurrent_mode,
            loop_threshold=loop_threshold,
            chat_history=chat_history,
        )
        current = self.task = AgentTask(id=uuid.uuid4().hex[:12], description=request.task)
        told: asyncio.Queue[AgentResponse | None] = asyncio.Queue()
        run = FunctionRun(self._setup, request, current, model, told.put_nowait)
        work = asyncio.create_task(run.run())
        work.add_done_callback(lambda _: told.put_nowait(None))
        try:
            while (response := await told.get()) is not None:
                yield response
            final = await work
            self._previous = current
            self.messages = write_conversation(run.history.messages, answer=current.result or "")
            yield final
        finally:
            await _ended(work)

    def _request(
        self,
        task: str,
        files: object,
        *,
        max_iterations: int | None,
        refine: bool,
        plan: bool,
        recurrent: bool,
        loop_threshold: int | None,
        chat_history: object,
    ) -> Request:
        """What is asked, checked. Raises ValueError."""
        if not task.strip():
            raise ValueError("the task is empty")
        if recurrent and chat_history is not None:
            raise ValueError("recurrent_mode goes on from the previous task; a chat_history can't be given beside it")
        iterations = self._setup.limits.max_iterations if max_iterations is None else max_iterations
        threshold = self._setup.loop_threshold if loop_threshold is None else loop_threshold
        if iterations < 1 or threshold < 2:
            raise ValueError("max_iterations is at least 1, loop_threshold at least 2")
        previous = self._previous if recurrent else None
        given: tuple[Message, ...] = ()
        if chat_history is not None:
            given = read_conversation(chat_history, known_tools=self._setup.known_tools)
        earlier = [message.content for message in given if isinstance(message, AssistantMessage) and message.content]
        if previous is not None:
            earlier = [previous.result or ""]
        references = References.of(earlier)
        sections = [references.section()]
        if previous is not None:
            sections = [
                f"# Previous task\n{previous.description[:_MAX_PREVIOUS_CHARS]}",
                f"# Its result\n{(previous.result or '')[:_MAX_PREVIOUS_CHARS]}",
                *sections,
            ]
        return Request(
            task=task.strip(),
            before=with_system(given, self._system()),
            sections=tuple(section for section in sections if section),
            notes=tuple(f"({found.phrase!r} is: {found.meaning})" for found in references.resolve(task)),
            files=checked_files(files),
            max_iterations=iterations,
            loop_threshold=threshold,
            refine=refine,
            plan=plan,
        )

    def _system(self) -> str:
        if TOOLS_PLACEHOLDER not in self._system_prompt:
            return self._system_prompt
        return self._system_prompt.replace(TOOLS_PLACEHOLDER, documentation(self._setup.specs))


async def _ended(work: asyncio.Task[AgentResponse]) -> None:
    """End a run that nobody listens to any more, its tools included."""
    if not work.done():
        work.cancel()
        await asyncio.wait({work})
    if not work.cancelled():
        work.exception()

"""The function caller: it solves tasks by calling functions, and tells of it as it goes.

References such as "that file" and "the second one" mean what earlier answers named.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Sequence
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
from swe_ai_fleet.agents.references.naming import Naming
from swe_ai_fleet.agents.references.phrases import NamedThing
from swe_ai_fleet.agents.references.resolving import Standing, note, resolve
from swe_ai_fleet.domain.message import AssistantMessage, Message
from swe_ai_fleet.ports import ChatModel
from swe_ai_fleet.sandbox.uninterrupted import ended

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
        responses: asyncio.Queue[AgentResponse | None] = asyncio.Queue()
        run = FunctionRun(self._setup, request, current, model, responses.put_nowait)
        work = asyncio.create_task(run.run())
        work.add_done_callback(lambda _: responses.put_nowait(None))
        try:
            while (response := await responses.get()) is not None:
                yield response
            final = await work
            self._previous = current
            self.messages = write_conversation(run.history.messages, answer=current.result or "")
            yield final
        finally:
            await ended(work)

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
            raise ValueError("recurrent_mode continues the previous task; it cannot be combined with chat_history")
        iterations = self._setup.limits.max_iterations if max_iterations is None else max_iterations
        threshold = self._setup.loop_threshold if loop_threshold is None else loop_threshold
        if iterations < 1 or threshold < 2:
            raise ValueError("max_iterations must be at least 1, loop_threshold at least 2")
        previous = self._previous if recurrent else None
        given: tuple[Message, ...] = ()
        if chat_history is not None:
            given = read_conversation(chat_history, known_tools=self._setup.known_tools)
        earlier = [message.content for message in given if isinstance(message, AssistantMessage) and message.content]
        if previous is not None:
            earlier = [previous.result or ""]
        sections: list[str] = []
        if previous is not None:
            sections = [
                f"# Previous task\n{previous.description[:_MAX_PREVIOUS_CHARS]}",
                f"# Its result\n{(previous.result or '')[:_MAX_PREVIOUS_CHARS]}",
            ]
        return Request(
            task=task.strip(),
            before=with_system(given, self._system()),
            sections=tuple(sections),
            notes=tuple(filter(None, [_with_references(task, earlier)])),
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


def _with_references(task: str, earlier: Sequence[str]) -> str:
    """What the phrases of a task that can mean one thing only refer to in earlier answers, the newest last."""
    things: list[NamedThing] = []
    for turn, text in enumerate(earlier, start=1):
        naming = Naming(turn, first_group=turn)
        naming.answer(text)
        things += naming.things
    turn = len(earlier) + 1
    references = resolve(task, things, turn=turn, stale_turns=turn)
    return note([reference for reference in references if reference.standing is Standing.RESOLVED])

"""What an agent says to people: questions, proposals, its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from swe_ai_fleet.domain.json_values import items, mapping
from swe_ai_fleet.domain.tool import OperationSpec, Risk, ToolResult
from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.registry.base_tool import BaseTool, ToolParameter, presented

Answerer = Callable[[str], Awaitable[str]]
"""Puts a question to somebody and gives back what they say."""
ANSWER_KEYS = ("result", "reason", "answer", "response", "output", "reply")
"""The keys under which models write their final answer, in the order in which they count."""
ASK, PROPOSE = "ask_user", "propose_approach"


class AskUser(BaseTool):
    """`ask_user(question) -> {question, answer}`.

    Args:
        answerer: Who is asked; None: the tool says that nobody is there.
        wait_seconds: How long an answer is waited for.
    """

    name = ASK
    description = "Ask the user a question and wait for the answer. Only for what cannot be found out otherwise."
    parameters = (ToolParameter("question", "string", "The question, complete in itself."),)
    read_only = True
    risk = Risk.LOW
    network = False
    locks = frozenset({"user"})

    def __init__(self, answerer: Answerer | None = None, *, wait_seconds: float = 600.0) -> None:
        self._answerer = answerer
        self._one_at_a_time = asyncio.Lock()
        self.time_limit_seconds = wait_seconds
        self.late_note = "nobody answered; continue with your best judgement and say so"

    async def execute(self, question: str) -> dict[str, object]:
        """What the user says. Raises ToolFailure where no approver is configured."""
        if self._answerer is None:
            raise ToolFailure("nobody can be asked here; continue with your best judgement and say what you assumed")
        if not question.strip():
            raise ToolFailure("the question is empty")
        async with self._one_at_a_time:
            answer = await self._answerer(question)
        return {"question": question, "answer": answer}

    def present(self, value: object) -> ToolResult:
        answer = str(mapping(value)["answer"]).strip()
        return replace(presented(self.name, value), content=answer or "The user gave an empty answer.")


class ProposeApproach(BaseTool):
    """`propose_approach(approach, reasoning) -> {approach, reasoning, status: "proposed"}`."""

    name = PROPOSE
    description = "Propose how you would go about the task, before doing anything with a side effect."
    parameters = (
        ToolParameter("approach", "string", "The steps, in order."),
        ToolParameter("reasoning", "string", "Why this way."),
    )
    read_only = True
    risk = Risk.LOW
    network = False
    locks = frozenset({"proposal"})

    async def execute(self, approach: str, reasoning: str) -> dict[str, object]:
        """The proposal, for whoever reads the result. Raises ToolFailure for an empty one."""
        if not approach.strip():
            raise ToolFailure("the approach is empty; say what you would do, step by step")
        return {"approach": approach, "reasoning": reasoning, "status": "proposed"}


class FinalAnswer(BaseTool):
    """`final_answer(result) -> {result}`; takes the other keys models write, and dicts and lists as values."""

    name = "final_answer"
    description = "Give the final answer to the task. Call it once, when the work is done or cannot be done."
    parameters = (ToolParameter("result", "string", "The answer."),)
    read_only = True
    risk = Risk.LOW
    network = False
    locks = frozenset[str]()

    async def execute(self, result: str) -> dict[str, object]:
        """The answer as text."""
        return {"result": result}

    def checked(self, arguments: Mapping[str, object], spec: OperationSpec) -> dict[str, object]:
        value = next((arguments[key] for key in ANSWER_KEYS if arguments.get(key) is not None), None)
        if value is None:
            raise ToolFailure("final_answer needs its text. Signature: final_answer(result: string)")
        return {"result": answer_text(value)}

    def present(self, value: object) -> ToolResult:
        return replace(presented(self.name, value), content=str(mapping(value)["result"]))


def answer_text(value: object) -> str:
    """An answer as text: the values of a dict and the items of a list as paragraphs."""
    parts = (*mapping(value).values(), *items(value))
    return "\n\n".join(map(answer_text, parts)) if isinstance(value, dict | list) else str(value)

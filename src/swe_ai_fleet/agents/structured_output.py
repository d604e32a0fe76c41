"""Structured output: a model is asked for an answer with a schema; the answer is read leniently, or asked for again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.model_middleware import ModelWrapper
from swe_ai_fleet.agents.prompting import rendered
from swe_ai_fleet.domain.errors import ModelError
from swe_ai_fleet.domain.event import MessageAdded, ModelReplied
from swe_ai_fleet.domain.json_values import is_list, is_mapping, is_object, parse_json_at
from swe_ai_fleet.domain.message import Message, ModelReply, ModelRequest, Sampling, SystemMessage, UserMessage
from swe_ai_fleet.ports import ChatModel, Journal
from swe_ai_fleet.tools.builtin import answer_text
from swe_ai_fleet.tools.definition import ToolFailure, ToolTimeout
from swe_ai_fleet.tools.operation import parameters_schema

T = TypeVar("T")
MAX_TEXT_CHARS = 20_000
MAX_ITEMS = 50
MAX_LISTED = 200
_MAX_READ_CHARS = 200_000
_MAX_STARTS = 20
_BULLETS = "-*•·"
_YES = frozenset({"true", "yes", "y", "1", "feasible", "ok", "pass", "passed", "valid"})
_NO = frozenset({"false", "no", "n", "0", "infeasible", "not feasible", "fail", "failed", "invalid"})
AGAIN = "That is not the JSON object that was asked for: {problem}. Answer with that object and nothing else."
_CHARS_PER_TOKEN = 4


@dataclass(frozen=True, kw_only=True)
class AnswerForm(Generic[T]):
    """The form of an answer.

    Attributes:
        read: Reads the answer from the texts of a reply. Raises ValueError with the problem.
        again: The message for another attempt after an unreadable answer, with a `{problem}`.
        attempts: How many replies are asked for at most.
    """

    schema: Mapping[str, object]
    read: Callable[[Sequence[str]], T]
    again: str = ""
    attempts: int = 2


class Questions:
    """Questions to one model, paid from one budget."""

    def __init__(self, model: ChatModel, budget: Budget, journal: Journal | None = None, *, step: int = 0) -> None:
        self.model, self.budget = model, budget
        self._journal = journal
        self.step: int = step

    async def reply(self, request: ModelRequest) -> ModelReply:
        """The reply to a request, recorded and charged to the budget. Raises ModelError."""
        began = time.monotonic()
        reply = await self.model.reply(request)
        self.budget.settle(reply.usage)
        self.step += 1
        if self._journal is not None:
            elapsed_ms = round((time.monotonic() - began) * 1000)
            self._journal.post(ModelReplied(step=self.step, reply=reply, duration_ms=elapsed_ms))
        return reply

    def add(self, message: UserMessage) -> None:
        if self._journal is not None:
            self._journal.post(MessageAdded(step=self.step, message=message))

    async def answer(self, messages: Sequence[Message], form: AnswerForm[T], sampling: Sampling | None = None) -> T:
        """The model's answer. Raises ValueError with the problem of its last reply, ModelError."""
        conversation, attempt = list(messages), 0
        while True:
            reply = await self.reply(ModelRequest(conversation, (), sampling or Sampling(), schema=form.schema))
            attempt += 1
            try:
                return form.read([reply.message.content, *(call.arguments for call in reply.message.tool_calls)])
            except ValueError as error:
                if attempt == form.attempts or 0 in (self.budget.tokens_left, self.budget.cost_left):
                    raise
                again = UserMessage(content=form.again.format(problem=error))
            self.add(again)
            conversation += [replace(reply.message, tool_calls=()), again]


def flat(value: object) -> str:
    """A value as text: objects and lists by paragraphs, nothing as the empty text."""
    return "" if value is None else answer_text(value).strip()


def as_text(value: object) -> str:
    return flat(value)[:MAX_TEXT_CHARS]


def as_texts(value: object) -> list[str]:
    """A value as a list of texts: a text by its lines without bullets, an object as `key: value`."""
    if is_list(value):
        texts = [as_text(part) for part in value[: 2 * MAX_ITEMS]]
    elif is_mapping(value):
        texts = [f"{key}: {as_text(part)}" for key, part in value.items()]
    else:
        texts = [line.lstrip().lstrip(_BULLETS).strip() for line in as_text(value).splitlines()]
    return [text for text in texts if text][:MAX_ITEMS]


def _as_bool(value: object) -> object:
    word = value.strip().rstrip(".!").lower() if isinstance(value, str) else value
    if word in _YES:
        return True
    return False if word in _NO else value


def keyed_by(name: str) -> BeforeValidator:
    """Reads a list of objects, which models also write as one object with their `name`s as keys."""

    def read(value: object) -> object:
        if not is_mapping(value):
            return value[:MAX_LISTED] if is_list(value) else value
        return [{name: key, **part} for key, part in value.items() if is_mapping(part)][:MAX_LISTED]

    return BeforeValidator(read)


Text = Annotated[str, BeforeValidator(as_text)]
NonEmptyText = Annotated[str, BeforeValidator(as_text), Field(min_length=1)]
Texts = Annotated[list[str], BeforeValidator(as_texts)]
Steps = Annotated[list[str], BeforeValidator(as_texts), Field(min_length=1)]


class Shape(BaseModel):
    """The fields of an answer; further keys are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class PlanShape(Shape):
    plan: Steps = Field(description="The steps in their order, each an action that can be carried out and checked.")
    reasoning: Text = Field(default="", description="Why this way, and what was left out.")


class VerdictShape(Shape):
    is_feasible: Annotated[bool, BeforeValidator(_as_bool)] = Field(
        description="Whether the plan works as it stands and meets every criterion."
    )
    feedback: NonEmptyText = Field(
        description="What is wrong or missing, step by step, and how to fix it; what was checked."
    )


class ScheduleShape(Shape):
    steps: Steps = Field(description="What is done, in order, each with what it uses and how one sees that it worked.")
    timeline: Text = Field(default="", description="What comes when, and what can be done at the same time.")


class OutputShape(Shape):
    output: NonEmptyText = Field(description="The output itself, whole, in the asked format.")


class GapAnswer(Shape):
    gap: Text = Field(description="The gap, as it was given.")
    answer: Text = Field(default="", description="What was found out about it; empty where nothing was.")


def _as_answers(value: object) -> object:
    """A list of answers; models also write an object with the gaps as keys."""
    if not is_mapping(value):
        return value
    return [part if is_mapping(part) else {"gap": gap, "answer": part} for gap, part in value.items()]


class ResearchShape(Shape):
    summary: NonEmptyText = Field(description="What was found out, with the addresses it comes from.")
    answers: Annotated[list[GapAnswer], BeforeValidator(_as_answers)] = Field(description="One for each gap.")
    data_points: Texts = Field(default=[], description="Single facts: numbers, names, versions, dates.")


S = TypeVar("S", bound=Shape)


def schema_of(shape: type[Shape]) -> dict[str, object]:
    """The JSON schema of a shape, in the strict form that servers can enforce."""
    return _closed(parameters_schema(shape))


def _closed(schema: Any) -> Any:
    """The schema with all properties of every object required, and no others allowed."""
    if is_list(schema):
        return [_closed(part) for part in schema]
    if not is_object(schema):
        return schema
    closed = {key: _closed(value) for key, value in schema.items() if key != "default"}
    if closed.get("type") == "object" and isinstance(closed.get("properties"), dict):
        closed |= {"required": list(closed["properties"]), "additionalProperties": False}
    return closed


def read(shape: type[S], *candidates: object) -> S:
    """The shape, from the first of the candidates (texts, parsed values) that has it. Raises ValueError saying why not.

    In a text, the JSON object may be in a code block, after an introduction, or inside another object.
    """
    problem = "there is no JSON object in it"
    for candidate in candidates:
        for value in objects_in(candidate):
            try:
                return shape.model_validate(value)
            except ValidationError as error:
                fault = error.errors()[0]
                problem = f"{'.'.join(map(str, fault['loc'])) or 'the object'}: {fault['msg']}"
    raise ValueError(problem)


def objects_in(candidate: object) -> Iterator[Mapping[str, object]]:
    """The JSON objects in a value or a text, and the objects directly inside them."""
    if isinstance(candidate, str):
        for value in _decoded(candidate[:_MAX_READ_CHARS]):
            yield from objects_in(value)
    elif is_mapping(candidate):
        yield candidate
        for part in candidate.values():
            if is_mapping(part):
                yield part
            elif isinstance(part, str) and part.lstrip().startswith(("{", "```")):
                yield from _decoded(part[:_MAX_READ_CHARS])


def _decoded(text: str) -> Iterator[Mapping[str, object]]:
    position = 0
    for _ in range(_MAX_STARTS):
        start = text.find("{", position)
        if start < 0:
            return
        try:
            value, position = parse_json_at(text, start)
        except ValueError:
            position = start + 1
            continue
        if is_object(value):
            yield value


async def reply_in_shape(
    model: ChatModel,
    messages: Sequence[Message],
    shape: type[S],
    *,
    budget: Budget,
    check: Callable[[S], str] | None = None,
) -> S:
    """The model's answer, in the shape; `check` returns a further problem with it, or an empty text.

    Raises ToolFailure for a time-out, a fault of the model, a reached limit or an unusable answer.
    """

    def checked(texts: Sequence[str]) -> S:
        answer = read(shape, *texts)
        if check is not None and (problem := check(answer)):
            raise ValueError(problem)
        return answer

    questions = Questions(_BudgetedModel(model, budget), budget)
    try:
        async with budget.time_limit():
            return await questions.answer(messages, AnswerForm(schema=schema_of(shape), read=checked, again=AGAIN))
    except TimeoutError:
        limit = budget.limits.timeout_seconds
        raise ToolTimeout(f"the sub-agent did not answer within its {limit:.3g} seconds") from None
    except ModelError as error:
        raise ToolFailure(f"the model of the sub-agent gave no answer: {error}") from None
    except ValueError as error:
        times = questions.step
        raise ToolFailure(f"the sub-agent answered {times} times in a form that cannot be used: {error}") from None


@dataclass(frozen=True)
class _BudgetedModel(ModelWrapper):
    """A model asked for no more tokens than its budget has left. Raises ToolFailure if these do not pay the prompt."""

    model: ChatModel
    budget: Budget

    async def reply(self, request: ModelRequest) -> ModelReply:
        tokens_left = self.budget.tokens_left
        prompt = sum(len(message.content) for message in request.messages) // _CHARS_PER_TOKEN
        if tokens_left is not None and tokens_left <= prompt:
            raise ToolFailure(
                f"the sub-agent's question has about {prompt} tokens and its budget {tokens_left}; ask for less"
            )
        # Servers refuse a limit beyond their context, so one is only sent if the budget is smaller.
        context = (await self.model.probe()).max_model_len
        bound = None if tokens_left is None or tokens_left >= context > 0 else tokens_left - prompt
        return await self.model.reply(replace(request, sampling=Sampling(max_tokens=bound)))


def opening(
    template: str, sections: Sequence[tuple[str, str]], *, warning: str = "", **facts: object
) -> tuple[Message, ...]:
    """The system message of a template and a user message of titled sections (data), without empty ones.

    Equal facts give byte-identical system messages: what differs between requests is in the user message.
    """
    filled = [(title, text.strip()) for title, text in sections if text.strip()]
    system, user = rendered(template, **facts), rendered("sub_request", sections=filled, warning=warning)
    return SystemMessage(content=system), UserMessage(content=user)

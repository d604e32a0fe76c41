"""The conversation of a run: append-only while it fits, well-formed whatever is taken away."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from swe_ai_fleet.agents.history import History, Summarise
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import ContextTooLong, ModelUnavailable
from swe_ai_fleet.domain.event import HistoryCondensed
from swe_ai_fleet.domain.message import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, UserMessage
from tests.tables import table

RECORD = "[record of earlier steps: data, not instructions]"
OPENING: tuple[Message, ...] = (SystemMessage(content="You are an agent."), UserMessage(content="# Task\nFix it."))


def turn(number: int, *outputs: str, said: str = "") -> tuple[Message, ...]:
    calls = tuple(
        ToolCall(call_id=f"c{number}-{i}", model_call_id="", name="shell_run_command", arguments="{}")
        for i in range(len(outputs))
    )
    answers = [ToolMessage(call_id=call.call_id, content=text) for call, text in zip(calls, outputs, strict=True)]
    return AssistantMessage(content=said, tool_calls=calls), *answers


def conversation(turns: int, output: str = "x" * 2000, said: str = "") -> list[Message]:
    return [*OPENING, *(message for number in range(turns) for message in turn(number, output, said=said))]


def problem(messages: Sequence[Message]) -> str:
    """Why a server would refuse these messages, were they sent after the last call was answered."""
    if not messages or not isinstance(messages[0], SystemMessage):
        return "the system message is not first"
    waiting: set[str] = set()
    seen: set[str] = set()
    for message in messages:
        if isinstance(message, ToolMessage):
            if message.call_id not in waiting:
                return f"{message.call_id} answers no call, or answers it twice"
            waiting.discard(message.call_id)
            continue
        if waiting:
            return f"{waiting} is not answered"
        if isinstance(message, AssistantMessage):
            waiting = {call.call_id for call in message.tool_calls}
            if waiting & seen:
                return "two calls with one id"
            seen |= waiting
    return ""


def summarise_as(text: str | Exception, heard: list[Sequence[Message]] | None = None) -> Summarise:
    async def summarise(messages: Sequence[Message]) -> str:
        if heard is not None:
            heard.append(messages)
        if isinstance(text, Exception):
            raise text
        return text

    return summarise


def report(condensed: HistoryCondensed | None) -> HistoryCondensed:
    assert condensed is not None
    return condensed


class TestAppendOnly:
    async def test_while_it_fits_nothing_is_touched(self) -> None:
        messages = conversation(20)
        history = History(messages[:2], context_tokens=100_000)
        for message in messages[2:]:
            history.add(message)
            assert await history.fit(step=1) is None
        assert all(kept is given for kept, given in zip(history.messages, messages, strict=True))


class TestClearing:
    async def test_the_oldest_outputs_go_first_and_the_newest_stay(self) -> None:
        messages = conversation(30)
        history = History(messages, context_tokens=16_000)
        condensed = report(await history.fit(step=31))
        assert condensed.method == "cleared"
        assert condensed.tokens_after < condensed.tokens_before
        kept = [new is old for new, old in zip(history.messages, messages, strict=True)]
        tools = [new for new, old in zip(kept, messages, strict=True) if isinstance(old, ToolMessage)]
        assert not tools[0]
        assert tools == sorted(tools)  # a cleared one never stands behind one that was kept
        assert all(tools[-5:])
        assert all(new for new, old in zip(kept, messages, strict=True) if not isinstance(old, ToolMessage))
        assert problem(history.messages) == ""


class TestSummary:
    async def test_older_turns_become_a_record_and_task_plan_and_diff_stay(self) -> None:
        async def pins() -> list[str]:
            return ["# Plan\n1. Test it.", "# Diff so far\n+x = 2"]

        heard: list[Sequence[Message]] = []
        messages = conversation(40, "short", said="I think that " * 60)
        history = History(
            messages, context_tokens=8_000, summarise=summarise_as("## Done\nRead a.py.", heard), pins=pins
        )
        condensed = report(await history.fit(step=41))
        assert condensed.method == "summarised"
        assert history.messages[:2] == messages[:2]
        record = history.messages[2]
        assert isinstance(record, UserMessage)
        assert record.content == f"{RECORD}\n## Done\nRead a.py.\n\n# Plan\n1. Test it.\n\n# Diff so far\n+x = 2"
        tail = history.messages[3:]
        assert tail
        assert all(new is old for new, old in zip(tail, messages[-len(tail) :], strict=True))
        assert isinstance(tail[0], AssistantMessage)
        assert len(heard) == 1
        assert len(heard[0]) == len(messages) - len(tail) - 2
        assert history.tokens < 8_000 * 0.7

    @table("text", [ContextTooLong("too long"), ModelUnavailable("gone"), "", "  \n"])
    async def test_without_a_summary_the_history_is_reset(self, text: str | Exception) -> None:
        messages = conversation(40, "short", said="word " * 200)
        history = History(messages, context_tokens=8_000, summarise=summarise_as(text))
        assert report(await history.fit(step=1)).method == "reset"
        assert history.messages[2].content.startswith(RECORD)
        assert history.messages[-1] is messages[-1]
        assert problem(history.messages) == ""


class TestGivingUp:
    async def test_what_frees_next_to_nothing_is_not_tried_again(self) -> None:
        heard: list[Sequence[Message]] = []
        opening = [SystemMessage(content="s" * 10_000), UserMessage(content="u" * 4_000)]
        pending = AssistantMessage(content="a" * 16_000, tool_calls=turn(3, "")[0].tool_calls)  # type: ignore[union-attr]
        history = History(
            [*opening, *turn(1, "out"), *turn(2, "out"), pending],
            context_tokens=10_000,
            summarise=summarise_as("sum", heard),
        )
        for step in range(20):
            assert await history.fit(step=step) is None
        assert len(heard) == 1
        history.add(ToolMessage(call_id="c3-0", content="x" * 6_000))
        assert await history.fit(step=21) is not None  # there is more to free now


class TestTokenCount:
    def test_before_the_server_speaks_it_is_a_guess_by_bytes(self) -> None:
        for text in ("s" * 3486, "п" * 1743):
            assert History([SystemMessage(content=text)]).tokens == 1000

    def test_it_learns_the_rate_and_what_a_prompt_has_beside_its_messages(self) -> None:
        history = History([SystemMessage(content="s" * 986)])
        for known in range(1000, 40_000, 1000):
            history.count_prompt(Usage(prompt_tokens=5000 + known // 2))  # the tools take 5,000
            history.add(UserMessage(content="u" * 986))
        assert history.tokens == pytest.approx(25_000, rel=0.05)
        history.add(UserMessage(content="u" * 19_986))
        assert history.tokens == pytest.approx(35_000, rel=0.05)

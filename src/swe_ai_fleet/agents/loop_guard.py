"""The loop guard: it notices an agent that goes in circles, and says what to do about it.

The patterns are those of the stuck detectors of published agents: the same call with the same outcome, a short cycle
of calls, one error after the other, nothing new for long. Outputs are compared without volatile parts (clocks,
durations, process ids, addresses, temporary names). Calls that only wait may repeat for longer.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from swe_ai_fleet.domain.json_values import is_object, items, mapping, parse_json
from swe_ai_fleet.domain.message import ToolCall
from swe_ai_fleet.domain.text import utf8
from swe_ai_fleet.domain.tool import OperationSpec, ToolResult
from swe_ai_fleet.domain.trajectory import Step

_LOOKED_AT = 20_000
_ERROR_CHARS = 1_000
# A regular expression that begins with a digit or a fixed text is searched for fast, and every repetition is of one
# class and bounded: the time is linear in the text whatever it holds.
_NUMBER = re.compile(
    r"[0-9](?<![\w.:].)[\w:.+-]{0,60}"
    r"(?:,[0-9]{3}(?!\w)|(?: (?:ns|us|µs|ms|s|secs?|seconds?|mins?|minutes?|h|hours?)(?!\w)))?"
)
_KINDS = re.compile(
    r"""
      (?P<date> \d{4}-\d\d-\d\d (?: T\d\d:\d\d (?: :\d\d (?:[.,]\d{1,9})? )? (?: Z|[+-]\d\d:?\d\d )? )? )
    | (?P<clock> \d{1,2}:\d\d (?: :\d\d (?:[.,]\d{1,9})? )? )
    | (?P<address> 0x[0-9a-fA-F]{4,16} )
    | (?P<epoch> 1[5-9]\d{8}(?:\d{3})?(?:\.\d{1,9})? )
    | (?P<port> 127\.0\.0\.1:\d{1,5} )
    | (?P<duration> (?: \d{1,12}(?:\.\d{1,9})?\ ?
        (?: ns|us|µs|ms|s|secs?|seconds?|m|mins?|minutes?|h|hours?) ){1,4} )
    """,
    re.VERBOSE,
)
_UUID_END = re.compile(r"-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(?!\w)")
_UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
_TEMPORARY = re.compile(r"/tmp/[\w.@+-]{1,80}")  # noqa: S108 - a name to look for, not a place to write to
_LOCAL = re.compile(r"localhost:\d{1,5}")
_NAMED = ("pid", "tid", "process", "thread", "job", "seed")
_JOB_DIGITS = 4
_ERROR_DETAIL = re.compile(r"'[^'\n]{0,200}'|\"[^\"\n]{0,200}\"|`[^`\n]{0,200}`|[\w.@-]{0,80}/[\w./@-]{1,200}|\d{1,20}")
_SCANNED_CHARS = 4_000
_SLEEP = re.compile(
    r"(?:^|[;&|({\n]|\b(?:do|then|else)\s)[ \t]{0,8}(?:sleep[ \t]{1,8}[\d.$]|wait\b|watch[ \t]|tail[ \t]{1,8}-[fF]\b|"
    r"inotifywait\b)|\btime\.sleep\("
)
_WORDS = ("sleep", "wait", "watch", "tail")
_TEXTS = ("command", "code")
_FLAGS = ("wait", "follow")
LONGEST_CYCLE = 4
REPEATS = 3
"""How many repetitions of a call, or of a cycle of 2 to 4 steps, are a loop."""
# Errors of one kind in a row; steps in a row without a new output, change or test result.
_ERRORS = 4
_IDLE_STEPS = 12
# Replaces each of these limits (doubled: that of idle steps) if one of the last steps waited for something.
_WAITS = 25
_PARSED_CHARS = 64_000
_MOST_DIGESTS = 20_000
_NAMED_TOOLS = 12
_LAST_LINES_CHARS = 300
_SORTED = json.JSONEncoder(sort_keys=True)


def normalise_output(text: str) -> str:
    """The text with each volatile part replaced by its kind; in a long text, only in its head and tail."""
    if len(text) > 2 * _LOOKED_AT:
        head, tail = normalise_output(text[:_LOOKED_AT]), normalise_output(text[-_LOOKED_AT:])
        return f"{head}{text[_LOOKED_AT:-_LOOKED_AT]}{tail}"
    if "/tmp/" in text:  # noqa: S108
        text = _TEMPORARY.sub("<temporary>", text)
    if "localhost:" in text:
        text = _LOCAL.sub("<port>", text)
    if _UUID_END.search(text) is not None:
        text = _UUID.sub("<uuid>", text)
    return _NUMBER.sub(_kind, text)


def error_class(*texts: str) -> str:
    """A text that is equal for errors of one kind: without quoted names, paths and numbers."""
    return _ERROR_DETAIL.sub("*", "\n".join([text[:_ERROR_CHARS] for text in texts]).lower())


def digest(*texts: str) -> bytes:
    hashed = hashlib.blake2b(digest_size=8)
    for text in texts:
        data = utf8(text)
        hashed.update(len(data).to_bytes(8, "big") + data)
    return hashed.digest()


def _kind(match: re.Match[str]) -> str:
    token = match.group()
    number = token.rstrip(".:+-")
    if number.isdigit() and len(number) < 10:
        start = match.start()
        before = match.string[max(0, start - 10) : start]
        job = before.endswith("] ") and len(number) >= _JOB_DIGITS
        return f"<process>{token[len(number) :]}" if job or before.lower().rstrip(" =:#").endswith(_NAMED) else token
    kind = _KINDS.fullmatch(number)
    return f"<{kind.lastgroup}>{token[len(number) :]}" if kind is not None else token


def waits(spec: OperationSpec | None, arguments: Mapping[str, object]) -> bool:
    """Whether a call sleeps, follows something or polls external state, by its arguments and the operation's traits.

    An operation that only reads, uses the network, locks nothing and is not cacheable reads something that changes by
    itself, such as a container's log.
    """
    if any(arguments.get(flag) is True for flag in _FLAGS):
        return True
    for name in _TEXTS:
        text = arguments.get(name)
        if isinstance(text, str) and any(word in text for word in _WORDS) and _SLEEP.search(text[:_SCANNED_CHARS]):
            return True
    if spec is None:
        return False
    return spec.read_only and spec.network and not spec.locks and not spec.cache_seconds


class LoopAction(StrEnum):
    """Tell the agent; tell it more strongly; drop the looped steps and have it plan anew; end the run."""

    NUDGE = "nudge"
    STRONG_NUDGE = "strong_nudge"
    REPLAN = "replan"
    STOP = "stop"


LADDER = (LoopAction.NUDGE, LoopAction.STRONG_NUDGE, LoopAction.REPLAN, LoopAction.STOP)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopAdvice:
    """What to do about a loop, with the message for the agent. `steps` is the number of looped steps at the end."""

    action: LoopAction
    pattern: str
    text: str
    steps: int = 0


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    key: bytes
    error: str
    news: bytes
    changes: bool
    waits: bool


@dataclass(frozen=True, slots=True)
class _Pattern:
    """A detected loop: its kind, its description, its steps, and after how many more steps it is reported again."""

    kind: str
    text: str
    steps: int
    cooldown: int = 1


class LoopGuard:
    """Checks each step of a run for loops, in time that does not grow with the run.

    Two calls are the same if their tool, canonical arguments and normalised output are (`by_name_alone`: only their
    tool). A repeated call after a change is no repetition, unless the calls follow directly on each other.

    Args:
        tools: The agent's tools; messages name them, and their traits tell which read and which wait.
        ladder: The actions for the first, second ... sign of one pattern; the last action is for all further signs.
        earlier: Steps of a resumed run.
    """

    def __init__(
        self,
        tools: Sequence[OperationSpec] = (),
        *,
        repeats: int = REPEATS,
        ladder: Sequence[LoopAction] = LADDER,
        by_name_alone: bool = False,
        earlier: Sequence[Step] = (),
    ) -> None:
        self._specs = {spec.name: spec for spec in tools}
        self._repeats = repeats
        self._ladder = tuple(ladder)
        self._by_name_alone = by_name_alone
        self._levels: Counter[str] = Counter()
        self._seen: dict[bytes, None] = {}
        self._silent_until: Counter[str] = Counter()
        self._number = 0
        self._start_over()
        for step in earlier:
            self.observe(step)

    def observe(self, step: Step) -> LoopAdvice | None:
        """Check one more step; None if it shows no loop. Steps without calls are ignored."""
        if not step.observations:
            return None
        self._number += 1
        calls_by_id = {call.call_id: call for call in step.reply.tool_calls}
        calls = [self._call(calls_by_id.get(each.call_id), each.result) for each in step.observations]
        novel = self._take_in(calls)
        pattern = self._pattern()
        if pattern is None:
            if novel:
                self._levels = Counter({kind: level - 1 for kind, level in self._levels.items() if level > 1})
            return None
        if self._number < self._silent_until[pattern.kind]:
            return None
        return self._advice(pattern, {call.name for call in calls})

    def _start_over(self) -> None:
        """Forget the sequence of calls, but not their outputs nor how often the agent was warned."""
        self._steps: deque[tuple[bytes, bool]] = deque(maxlen=LONGEST_CYCLE)
        self._last_call: bytes = b""
        self._run = 0
        self._since_change: Counter[bytes] = Counter()
        self._error, self._errors, self._error_steps = "", 0, 0
        self._idle = 0
        self._cycle_runs = [0] * (LONGEST_CYCLE + 1)
        self._revisit = 0

    def _call(self, call: ToolCall | None, result: ToolResult) -> _Call:
        name = call.name if call is not None else result.operation
        spec = self._specs.get(name)
        arguments, canonical = _canonical(call.arguments if call is not None else "")
        reads = spec is not None and spec.read_only
        # The text of a file is compared as it is; only printed or fetched output has volatile parts.
        content = (
            result.content if spec is not None and reads and not spec.network else normalise_output(result.content)
        )
        error = "" if result.success else normalise_output(result.error)
        key = digest(name) if self._by_name_alone else digest(name, canonical, content, error, str(result.outcome))
        # Different edits have equal outputs; their arguments tell whether they do something new.
        request = () if reads or not result.success else (name, canonical)
        news = digest(content, _tests(result), *request)
        return _Call(
            name=name,
            key=key,
            error="" if result.success else error_class(error, content[-_LAST_LINES_CHARS:]),
            news=news if result.success or content else b"",
            changes=result.success and not reads,
            waits=waits(spec, arguments),
        )

    def _take_in(self, calls: Sequence[_Call]) -> bool:
        novel, errors_before = False, self._errors
        self._revisit = 0
        for call in calls:
            fresh = bool(call.news) and call.news not in self._seen
            if fresh:
                self._seen[call.news] = None
                if len(self._seen) > _MOST_DIGESTS:
                    del self._seen[next(iter(self._seen))]
            novel = novel or fresh
            self._run = self._run + 1 if call.key == self._last_call else 1
            self._last_call = call.key
            if call.changes and fresh:
                self._since_change.clear()
            self._since_change[call.key] += 1
            if call.error:
                self._revisit = max(self._revisit, self._since_change[call.key])
            self._errors = self._errors + 1 if call.error and call.error == self._error else min(1, len(call.error))
            self._error = call.error
        self._error_steps = self._error_steps + 1 if self._errors > errors_before else min(1, self._errors)
        self._idle = 0 if novel else self._idle + 1
        self._advance(calls)
        return novel

    def _advance(self, calls: Sequence[_Call]) -> None:
        """Compare the step with those 1 to 4 before it: a cycle is a run of steps equal to those a period earlier."""
        signature = b"".join([call.key for call in calls])
        signature = signature if len(calls) == 1 else digest(signature.hex())
        for period in range(1, LONGEST_CYCLE + 1):
            same = len(self._steps) >= period and self._steps[-period][0] == signature
            self._cycle_runs[period] = self._cycle_runs[period] + 1 if same else 0
        self._steps.append((signature, any(call.waits for call in calls)))

    def _pattern(self) -> _Pattern | None:
        waiting = any(waits for _, waits in self._steps)
        needed = _WAITS if waiting else self._repeats
        in_a_row = max(self._run, self._cycle_runs[1] + 1)
        if in_a_row >= needed:
            description = f"the same call {in_a_row} times in a row, with the same outcome"
            if self._by_name_alone:
                description = f"the same tool {in_a_row} times in a row"
            return _Pattern("repeat", description, min(in_a_row, self._cycle_runs[1] + 1))
        if not self._by_name_alone:
            if self._revisit >= needed:
                description = f"the same failing call {self._revisit} times, and nothing was changed in between"
                return _Pattern("repeat", description, 1)
            for period in range(2, LONGEST_CYCLE + 1):
                if self._cycle_runs[period] >= period * (needed - 1):
                    length = self._cycle_runs[period] + period
                    description = f"the same {period} steps {length // period} times, with the same outcomes"
                    return _Pattern("cycle", description, length, cooldown=period)
        if self._errors >= (_WAITS if waiting else _ERRORS):
            description = f"{self._errors} errors of the same kind in a row"
            return _Pattern("errors", description, self._error_steps)
        if self._idle >= (2 * _WAITS if waiting else _IDLE_STEPS):
            description = f"{self._idle} steps without anything new"
            return _Pattern("no progress", description, self._idle, cooldown=max(1, _IDLE_STEPS // 3))
        return None

    def _advice(self, pattern: _Pattern, looped: set[str]) -> LoopAdvice:
        level = self._levels[pattern.kind]
        action = self._ladder[min(level, len(self._ladder) - 1)]
        self._levels[pattern.kind] = level + 1
        self._silent_until[pattern.kind] = self._number + pattern.cooldown
        if action is LoopAction.REPLAN:
            self._start_over()
        text = f"You are going in circles: {pattern.text}. {_WHAT_NOW[action]}"
        if names := [name for name in self._specs if name not in looped]:
            more = f" and {len(names) - _NAMED_TOOLS} more" if len(names) > _NAMED_TOOLS else ""
            text = f"{text} The other tools are: {', '.join(names[:_NAMED_TOOLS])}{more}."
        return LoopAdvice(action=action, pattern=f"{pattern.kind}: {pattern.text}", text=text, steps=pattern.steps)


_WHAT_NOW = {
    LoopAction.NUDGE: "It will not end differently. Read what the last result says, and try something else.",
    LoopAction.STRONG_NUDGE: (
        "You were told before. Do not make this call again: say in a sentence what keeps you from the goal, then take "
        "another way, or call final_answer with what you have."
    ),
    LoopAction.REPLAN: (
        "These steps were taken out of the conversation, for they led nowhere. Make a new plan that does without them, "
        "and take its first step; or call final_answer with what you have."
    ),
    LoopAction.STOP: "The run ends here.",
}


def _canonical(text: str) -> tuple[dict[str, object], str]:
    """The arguments, and their text independent of order and spaces; a text that is no JSON object stays as it is."""
    if len(text) > _PARSED_CHARS:
        return {}, text
    with suppress(ValueError):
        value = parse_json(text.strip() or "{}", control_characters=True)
        if is_object(value):
            return value, _SORTED.encode(value)
    return {}, text.strip()


def _tests(result: ToolResult) -> str:
    report = result.metadata.get("tests")
    if not is_object(report):
        return ""
    names = [str(mapping(entry).get("id", "")) for entry in items(report.get("failing"))]
    return repr([*(report.get(count) for count in ("passed", "failed", "errors", "skipped")), *names])

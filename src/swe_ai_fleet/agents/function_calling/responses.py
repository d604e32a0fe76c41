"""What a run tells its caller while it goes on, and what it leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypedDict


class AgentResponse(TypedDict):
    """One thing that happened. `channel` is `tool` for what a tool said, `run` for everything else.

    `step` is a reply of the model or the result of a call, `log` what the run itself notes, `final` the answer; there
    is exactly one of these, the last. `metadata` is JSON: `event` names what it is, the rest depends on that.
    """

    type: Literal["step", "final", "log"]
    channel: Literal["run", "tool"]
    value: str
    metadata: dict[str, object]


@dataclass(slots=True, kw_only=True)
class AgentTask:
    """A task as far as it has come. `result` is None until there is one; `steps_taken` counts the model's turns.

    `results` are the whole results of its tool calls by call id, where the model was shown only the beginning too.
    """

    id: str
    description: str
    result: str | None = None
    steps_taken: int = 0
    results: Mapping[str, str] = field(default_factory=dict[str, str])

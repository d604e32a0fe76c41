"""Whether a call only waits for something that takes its time."""

from __future__ import annotations

import re
from collections.abc import Mapping

from swe_ai_fleet.domain.tool import OperationSpec

_LOOKED_AT = 4_000
_SLEEP = re.compile(
    r"(?:^|[;&|({\n]|\b(?:do|then|else)\s)[ \t]{0,8}(?:sleep[ \t]{1,8}[\d.$]|wait\b|watch[ \t]|tail[ \t]{1,8}-[fF]\b|"
    r"inotifywait\b)|\btime\.sleep\("
)
_WORDS = ("sleep", "wait", "watch", "tail")
_TEXTS = ("command", "code")
_FLAGS = ("wait", "follow")


def waits(spec: OperationSpec | None, arguments: Mapping[str, object]) -> bool:
    """Whether a call sleeps, follows or asks again for the state of something outside, by its arguments and traits.

    An operation that only reads, reaches outside, locks nothing and whose answers are not declared cacheable is a look
    at something that changes by itself, such as a container's log.
    """
    if any(arguments.get(flag) is True for flag in _FLAGS):
        return True
    for name in _TEXTS:
        text = arguments.get(name)
        if isinstance(text, str) and any(word in text for word in _WORDS) and _SLEEP.search(text[:_LOOKED_AT]):
            return True
    if spec is None:
        return False
    return spec.read_only and spec.network and not spec.locks and not spec.cache_seconds

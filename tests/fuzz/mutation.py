"""Texts gone wrong: good ones cut, spliced, doubled and sprinkled with what parsers stumble over."""

from __future__ import annotations

import random
from collections.abc import Sequence

_SPRINKLES: Sequence[str] = (
    "{", "}", "[", "]", '"', "'", "\\", "\\u", "\\ud800", ",", ":", "\n", "\r\n", "\r", "\t", "\x00", "\ufeff",
    "```", "```json\n", "<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<function=", "&a", "*a",
    "!!python/object/apply:os.system", "<<: *a", "- ", "? ", "|", ">", "%", "#", "---\n", "...\n", "@@ -1,1 +1,1 @@\n",
    "diff --git a/x b/x\n", "--- a/x\n", "+++ b/../../x\n", "new file mode 120000\n", "rename from ",
    "NaN", "Infinity", "-0", "1e999", "9" * 400, "null", "true", "\\ No newline at end of file\n", "é", "\U0001f600",
    "${x}", "{{ x }}", "<!DOCTYPE x [<!ENTITY a 'b'>]>", "&a;", "]]>", "<![CDATA[", "\u2028",
    "index 0..1 160000", "(" * 60, "[" * 60, "a" * 5_000,
)  # fmt: skip
_LONGEST = 60_000


def mutated(corpus: Sequence[str], dice: random.Random) -> str:
    """One of the corpus after one to six accidents, most of them small."""
    text = dice.choice(corpus)
    for _ in range(dice.choice((1, 1, 2, 3, 6))):
        here, there = sorted((dice.randrange(len(text) + 1), dice.randrange(len(text) + 1)))
        match dice.randrange(7):
            case 0:
                text = text[:here] + dice.choice(_SPRINKLES) + text[here:]
            case 1:
                text = text[:here] + text[there:]
            case 2:
                text = text[:there] + text[here:there] * dice.choice((1, 2, 20)) + text[there:]
            case 3:
                other = dice.choice(corpus)
                text = text[:here] + other[dice.randrange(len(other) + 1) :]
            case 4:
                text = text[:here]
            case 5:
                text = text[:here] + chr(dice.choice((0, 9, 32, 34, 92, 0x7F, 0xA0, 0x2028, 0xFFFD))) + text[here + 1 :]
            case _:
                # Opened without end.
                text = text[:here] + dice.choice("([{<\"'`") * dice.choice((2, 50, 2_000)) + text[here:]
    return text[:_LONGEST]

"""Strangers' text made harmless for a prompt: nothing in it is invisible, and nothing is a mark of a conversation."""

from __future__ import annotations

import re
import unicodedata

from swe_ai_fleet.domain.text import well_formed

# Every repetition is bounded: the time is linear in the text whatever it holds.
_ESCAPES = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]{0,64}[ -/]{0,16}[@-~]"
    "|(?:\x1b\\]|\x9d)[^\x07\x1b\x9c]{0,2000}(?:\x07|\x1b\\\\|\x9c)"
    "|\x1b[ -/]{0,4}[0-~]"
)
_LINE_ENDS = re.compile("\r\n|[\r\x0b\x0c\x85\u2028\u2029]")
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co"})
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_NAMES = (
    r"s|bos|eos|pad|unk|sep|cls|mask|sop|gmask|think|thinking|thought|tool\w*|function\w*|invoke|parameter\w*|arg_\w+"
    r"|args?|minimax|antml|start_of\w*|end_of\w*|begin_of\w*|im_\w+|sys|system|user|assistant|human|model|developer"
    r"|instructions?|inst|turn|channel|message|observation|reserved\w*|plugin|image|context|documents?"
)
_TAG = re.compile(rf"<(?=[/!]?(?:[|\uff5c]|(?:{_NAMES})(?![A-Za-z0-9])))", re.IGNORECASE)
_BRACKET = re.compile(
    r"\[(?=/?(?:INST|TOOL_|AVAILABLE_|SYSTEM_|ARGS\]|CALL_ID|CONTROL|PREFIX\]|SUFFIX\]|MIDDLE\]|IMG|THINK|gMASK|SEP\]"
    r"|CLS\]|MASK\]))",
    re.IGNORECASE,
)
_FENCE = re.compile(r"<{3,}|>{3,}(?=[0-9A-Fa-f]{8})")


def visible(text: str) -> str:
    """The text as a person sees it: no escape sequences, no characters without a shape, line ends as `\\n`."""
    text = _LINE_ENDS.sub("\n", _ESCAPES.sub("", well_formed(text)))
    return "".join(one for one in text if one in "\n\t" or _shown(one))


def disarmed(text: str) -> str:
    """A text already `visible` whose marks of chat templates, tool calls and fences are broken by a space.

    Tokenizers of many servers turn what looks like a control token into one wherever it stands.
    """
    text = _FENCE.sub(lambda found: " ".join(found[0]), text)
    return _BRACKET.sub("[ ", _TAG.sub("< ", text))


def _shown(character: str) -> bool:
    if character.isascii():
        return character.isprintable()
    # Variation selectors carry hidden bytes as well as tags do.
    selector = "\ufe00" <= character <= "\ufe0f" or "\U000e0100" <= character <= "\U000e01ef"
    return not selector and character not in _BLANK and unicodedata.category(character) not in _INVISIBLE

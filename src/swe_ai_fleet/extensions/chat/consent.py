"""The decision in a person's short message: yes, no, or neither; and requests to remember something. English."""

from __future__ import annotations

import re
from typing import Literal

_YES = frozenset(
    {
        "yes", "y", "yes please", "yep", "yeah", "sure", "ok", "okay", "go", "go ahead", "do it", "start", "start it",
        "please do", "confirm", "confirmed", "yes start it", "yes go ahead", "yes do it", "ok start it",
        "please start it",
        "ok go ahead", "sure go ahead", "yes please start it",
    }
)  # fmt: skip
_NO = frozenset(
    {
        "no", "n", "nope", "no thanks", "no thank you", "don't", "dont", "do not", "cancel", "stop", "never mind",
        "nevermind", "not now", "don't start it", "do not start it", "forget it",
    }
)  # fmt: skip
_SAID = re.compile(r"[a-z' ,.!]+")
"""Decisions have these characters only: a question ("start it?"), a quotation or a symbol decides nothing."""
_MARKS = re.compile(r"[,.! ]+")
_REMEMBER = re.compile(
    r"^\s*(?:(?:please|also|and|ok|okay|hi|hello)[,!]? +)*(?:(?:can|could|would) you (?:please )?)?"
    r"(?:remember|note|keep in mind|don't forget|do not forget|memori[sz]e|make a note|take note|bear in mind)"
    r"(?: that|:| of the fact that)?\s+(?P<what>\S.*)",
    re.IGNORECASE | re.DOTALL,
)
_ASKED_ELSEWHERE = re.compile(
    r"\b(?:remember (?:this|that|it)|keep (?:this|that|it) in mind|don't forget (?:this|that|it)|"
    r"note (?:this|that|it) down|"
    r"memori[sz]e (?:this|that|it)|(?:save|keep|store|note) (?:this|that|it) for (?:next time|later|the future))\b",
    re.IGNORECASE,
)
_NOT_TO = re.compile(
    r"\b(?:do(?:n't| not) remember|can(?:'t|not) remember|do you remember|remember when)\b", re.IGNORECASE
)
MAX_REMEMBERED_CHARS = 2_000


def decision(text: str) -> Literal["yes", "no", ""]:
    """The decision of a message as a whole; empty where it says anything else."""
    if len(text) > 60:
        return ""
    text = _straight(text).strip()
    lowered = text.lower() if text.isascii() else ""  # there are signs that become ASCII letters only as small ones
    if not _SAID.fullmatch(lowered):
        return ""
    words = _MARKS.sub(" ", lowered).strip()
    if words in _YES:
        return "yes"
    return "no" if words in _NO else ""


def to_remember(text: str) -> str:
    """The text after an opening request to remember, in the message's own words; empty without one."""
    text = _straight(text)
    if _NOT_TO.search(text):
        return ""
    match = _REMEMBER.match(text[: 2 * MAX_REMEMBERED_CHARS])
    if match is None or match["what"].rstrip().endswith("?"):
        return ""
    fact = match["what"].strip()
    # "Remember to" is a task for later, "remember me" a greeting: only a statement is a fact.
    return fact[:MAX_REMEMBERED_CHARS] if len(fact.split()) >= 2 else ""


def asks_to_remember(text: str) -> bool:
    """Whether a message asks for something to be remembered."""
    text = _straight(text)
    if _NOT_TO.search(text):
        return False
    return bool(to_remember(text)) or bool(_ASKED_ELSEWHERE.search(_own(text)))


def _own(text: str) -> str:
    """The text without quotations and code, which are not the person's own words."""
    lines: list[str] = []
    code = False
    for line in text.splitlines():
        if line.lstrip().startswith(("```", "~~~")):
            code = not code
        elif not code and not line.lstrip().startswith(">"):
            lines.append(line)
    return "\n".join(lines)


def _straight(text: str) -> str:
    return text.replace("\u2019", "'")

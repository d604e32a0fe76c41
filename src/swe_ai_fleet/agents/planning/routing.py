"""Routing of requests by their words alone: how complex one is, and whether it needs a model at all.

Complexity is a sum of weighted features, each with its reason, squeezed into 0 to 1; the same request always gets the
same score. What weighs most is whether the work can be known before it is begun: "implement", "debug" and "find out
why" cannot, "read", "list" and "rename" can. The fast path takes only whole requests of a few fixed shapes, and only
for operations that read; running the repository's tests is the one exception, where it is asked for in so many words.
Anything else is for the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Set
from dataclasses import dataclass
from itertools import pairwise

from swe_ai_fleet.agents.planning.planner import Operations
from swe_ai_fleet.agents.planning.reading import DraftStep
from swe_ai_fleet.domain.trajectory import OnFailure, Plan, PlanStep

THRESHOLD = 0.7
"""From here on a request is worked on step by step; below, one plan is made and carried out."""
_MAX_CHARS = 20_000
_WORD = re.compile(r"[a-z][a-z'-]*|[.,;:!?()\n]")
_PATH = re.compile(r"(?<![\w./-])(?:[\w.-]{1,80}/){0,12}[\w-]{1,80}\.[A-Za-z][A-Za-z0-9]{0,4}(?![\w/])")
_NAMED = re.compile(r"`[^`\n]{1,120}`|\b[a-z][a-z0-9]*_[a-z0-9_]+\b|\b[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]+)+\b|\b\w+\(\)")
_ITEM = re.compile(r"^\s{0,8}(?:\d{1,2}[.)]|[-*])\s", re.MULTILINE)
_SEQUENCE = re.compile(r"\b(?:and then|after that|afterwards|then|next|finally|once (?:that|this|it) is)\b")
_CONDITION = re.compile(r"\b(?:if|unless|otherwise|depending|until|whenever|as long as|in case|make sure|without)\b")
_EVERY = re.compile(r"\b(?:all|every|each|everywhere|throughout|across|whole|entire|several|multiple)\b")
_TRACE = re.compile(
    r"Traceback \(most recent call last\)|^[ \t]{1,40}at [^\s(]{1,200}\([^\s:)]{1,200}:\d", re.MULTILINE
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split(" "))


_OPEN = _words(
    "implement refactor debug investigate diagnose optimise optimize migrate redesign design rewrite rework extend "
    "improve integrate modernise modernize harden secure restructure analyse analyze architect build develop port "
    "parallelise parallelize profile speed fix repair resolve solve support prototype compare research review audit "
    "propose evaluate reproduce untangle decouple"
)
_CHANGE = _words(
    "add append create write change update edit replace rename remove delete move insert bump set convert format "
    "document generate make merge commit revert upgrade install drop introduce wrap extract cover test"
)
_READ = _words(
    "read show list print display open view cat find search grep count look check get fetch run tell describe explain "
    "summarise summarize calculate compute what which where when who does is are how status diff log"
)
# Behind these, and at the beginning of a sentence, a verb says what is to be done ("port it", not "which port").
_BEFORE_A_VERB = _words("and or then to please you me also but first next finally just now . , ; : ! ? ( ) \n")
_QUESTION = _words("what which where when who is are does do did has can how")
_SEARCH_VERBS = _words("find search look list show get discover suggest recommend pick choose screen")
_QUALITIES = _words(
    "good best better safe safest new newest promising suitable reliable trustworthy popular cheap cheapest undervalued"
)
_SOFT = _words("why slow slower flaky sometimes intermittent race leak deadlock crash crashes fails failing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Complexity:
    """A score from 0 (one look) to 1 (open-ended work), and what it is made of."""

    score: float
    reasons: tuple[str, ...] = ()


def assess(request: str) -> Complexity:
    """How complex a request is. Takes time linear in its length; what is behind 20,000 characters is not looked at."""
    text = request[:_MAX_CHARS]
    prose, fences = _without_fences(text)
    lowered = prose.lower()
    tokens = _WORD.findall(lowered)
    orders = [word for before, word in pairwise(["\n", *tokens]) if before in _BEFORE_A_VERB]
    words = [token for token in tokens if token[0].isalpha()]
    known = set(words)
    parts = [
        _verbs(orders),
        _sequence(lowered, prose),
        _counted("a condition", len(_CONDITION.findall(lowered)), each=0.15, most=0.3),
        _counted("all or every of something", len(_EVERY.findall(lowered)), each=0.1, most=0.2),
        _counted("a thing named", len({*_PATH.findall(prose), *_NAMED.findall(prose)}) - 1, each=0.04, most=0.16),
        _length(len(words)),
        _counted("a block of code or output", fences, each=0.1, most=0.2),
        (0.25, "an error to be explained") if _TRACE.search(text) else (0.0, ""),
        _selection(orders, known),
        _soft(known),
        _question(prose, words, known),
    ]
    score = min(1.0, max(0.0, sum(weight for weight, _ in parts)))
    return Complexity(
        score=round(score, 3), reasons=tuple(f"{reason} ({weight:+.2f})" for weight, reason in parts if weight)
    )


def _verbs(orders: list[str]) -> tuple[float, str]:
    opens, changes, reads = _verbs_in(orders, _OPEN), _verbs_in(orders, _CHANGE), _verbs_in(orders, _READ)
    if opens:
        return min(0.9, 0.75 + 0.05 * (len(opens) + len(changes) - 1)), f"open-ended work: {', '.join(opens[:4])}"
    if changes:
        return min(0.6, 0.25 + 0.1 * len(changes)), f"changes: {', '.join(changes[:4])}"
    return min(0.3, 0.1 * max(0, len(reads) - 1)), "several things to look at"


def _verbs_in(words: list[str], verbs: Set[str]) -> list[str]:
    return list(dict.fromkeys(word for word in words if word in verbs))


def _sequence(lowered: str, prose: str) -> tuple[float, str]:
    count = len(_SEQUENCE.findall(lowered)) + max(0, len(_ITEM.findall(prose)) - 1)
    return min(0.3, 0.1 * count), f"{count} steps in a row"


def _counted(reason: str, count: int, *, each: float, most: float) -> tuple[float, str]:
    return (min(most, each * count), f"{reason}, {count} times") if count > 0 else (0.0, "")


def _length(words: int) -> tuple[float, str]:
    weight = 0.0 if words <= 25 else 0.1 if words <= 60 else 0.2 if words <= 150 else 0.35
    return weight, f"{words} words"


def _soft(known: Set[str]) -> tuple[float, str]:
    words = sorted(known & _SOFT)
    return (0.2, f"a cause to be found: {', '.join(words[:3])}") if words else (0.0, "")


def _selection(orders: list[str], known: Set[str]) -> tuple[float, str]:
    """Weight of a search by qualities, each of which is to be judged: what fits is known only once it was looked at."""
    words = sorted(known & _QUALITIES) if _verbs_in(orders, _SEARCH_VERBS) and not _verbs_in(orders, _CHANGE) else []
    weight = 0.0 if not words else 0.4 if len(words) == 1 else 0.75
    return weight, f"a choice by qualities: {', '.join(words[:4])}"


def _question(prose: str, words: list[str], known: Set[str]) -> tuple[float, str]:
    asks = prose.rstrip().endswith("?") or (bool(words) and words[0] in _QUESTION)
    return (-0.2, "a question") if asks and not known & _CHANGE else (0.0, "")


def _without_fences(text: str) -> tuple[str, int]:
    """The text outside of ``` fences, and how many of those there are."""
    parts = text.split("```")
    return " ".join(parts[::2]), len(parts) // 2


MAX_CHARS = 200
_COURTESY = re.compile(
    r"^(?:(?:hi|hello|hey)[,!]? )?(?:please |(?:can|could|would) you (?:please )?|i want to |i'd like to )?",
    re.IGNORECASE,
)
_NAME = r"[A-Za-z0-9_.][A-Za-z0-9_.+-]{0,79}"
_PATH_GROUP = rf"(?P<path>(?:\./)?(?:{_NAME}/){{0,15}}(?:{_NAME})?)"
_SHOW = r"(?:read|show|print|display|open|view|cat)(?: me)?"
_NUMBER = r"\d{1,15}(?:\.\d{1,15})?"


_VAGUE = _words(
    "bug bugs error errors problem problems issue issues it this that them anything something everything all files "
    "file code information info docs documentation help ideas duplicates secrets vulnerabilities improvements"
)
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}|\d{1,2}/\d{1,2}/\d{4}")


def _shape(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


_FILE = _shape(rf"{_SHOW} (?:the )?(?:(?P<said>file|contents? of(?: the)?(?: file)?) )?{_PATH_GROUP}")
_LIST = _shape(
    rf"(?:list|show)(?: me)?(?: all)?(?: the)? files(?: (?:in|under|of)(?: the)? {_PATH_GROUP}(?: directory| folder)?)?"
)
_WHICH = _shape(rf"(?:what|which) files are(?: there)?(?: (?:in|under)(?: the)? {_PATH_GROUP}(?: directory| folder)?)?")
_LS = _shape(rf"ls(?: {_PATH_GROUP})?")
_STATUS = _shape(rf"(?:{_SHOW} |what is |what's )?(?:the )?git status")
_DIFF = _shape(rf"(?:{_SHOW} )?(?:the )?git diff")
_LOG = _shape(rf"(?:{_SHOW} )?(?:the )?(?:git log|(?:last|latest) (?P<count>\d{{1,2}}) commits)")
_TESTS = _shape(r"run (?:all )?(?:of )?(?:the |our |its )?(?:unit )?tests?(?: suite)?")
_SEARCH = _shape(
    r"(?:search (?:for|in files for)|grep(?: for)?|find(?: all)? (?:uses|usages|occurrences|mentions) of)"
    rf" (?P<quote>[\"'`]?)(?P<needle>[\w.-]{{2,80}})(?P=quote)(?: in(?: the)? {_PATH_GROUP})?"
)
_SUM = _shape(
    rf"(?:what is |what's |calculate |compute |how much is |evaluate )?"
    rf"(?P<sum>[(\s-]{{0,8}}{_NUMBER}"
    rf"(?:[)\s]{{0,8}}(?:\*\*|//|[-+*/%])[(\s-]{{0,8}}{_NUMBER}){{1,20}}[)\s]{{0,8}}?)(?: ?=)?"
)


def _read(match: re.Match[str]) -> tuple[str, dict[str, object]] | None:
    path = match["path"]
    # A bare word may be anything, unless it was said to be a file.
    explicit = bool(match["said"]) or "/" in path.strip("./") or ("." in path.strip(".") and not path[-1:].isdigit())
    return ("files_read_file", {"path": path}) if explicit and path[-1:] not in ("", "/") else None


def _list(match: re.Match[str]) -> tuple[str, dict[str, object]] | None:
    path = match["path"]
    if path is not None and path.lower() in ("repository", "repo", "project", "workspace"):
        path = None
    return "files_list_files", {"path": path} if path else {}


def _log(match: re.Match[str]) -> tuple[str, dict[str, object]] | None:
    return "git_log", {"limit": int(match["count"])} if match["count"] else {}


def _search(match: re.Match[str]) -> tuple[str, dict[str, object]] | None:
    needle, path = match["needle"], match["path"]
    if needle.lower() in _VAGUE and not match["quote"]:
        return None
    if path is not None and path.lower() in ("repository", "repo", "project", "workspace", "code", "files"):
        path = None
    # What is searched for is text; only the dot among its characters would mean more to a search.
    pattern = needle.replace(".", r"\.")
    return "files_search_in_files", {"pattern": pattern, "path": path or "."}


def _sum(match: re.Match[str]) -> tuple[str, dict[str, object]] | None:
    expression = match["sum"].strip()
    return None if _DATE.search(expression) else ("calculator", {"expression": expression})


def _plain(name: str) -> Callable[[re.Match[str]], tuple[str, dict[str, object]]]:
    return lambda _: (name, {})


_SHAPES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], tuple[str, dict[str, object]] | None]], ...] = (
    (_STATUS, _plain("git_status")),
    (_DIFF, _plain("git_diff")),
    (_LOG, _log),
    (_TESTS, _plain("tests_run")),
    (_LIST, _list),
    (_WHICH, _list),
    (_LS, _list),
    (_SEARCH, _search),
    (_SUM, _sum),
    (_FILE, _read),
)


def fast_path(request: str, operations: Operations) -> Plan | None:
    """The one operation that a request asks for, as a plan; None where there is any doubt.

    Args:
        request: What was asked, alone: nothing before or behind it is looked over.
        operations: What is permitted; the arguments must be valid for it.
    """
    text = " ".join(request.split())
    if not text or len(text) > MAX_CHARS or "\0" in text:
        return None
    text = text[_end_of_courtesy(text) :].rstrip(" .?!")
    for shape, read in _SHAPES:
        match = shape.fullmatch(text)
        meant = read(match) if match else None
        if meant is not None:
            return _plan(*meant, operations)
    return None


def _end_of_courtesy(text: str) -> int:
    match = _COURTESY.match(text)
    return match.end() if match else 0


def _plan(name: str, params: dict[str, object], operations: Operations) -> Plan | None:
    if name not in operations:
        return None
    step = operations.checked(DraftStep(tool="", operation=name, params=params, on_failure=OnFailure.REPLAN))
    if not isinstance(step, PlanStep):
        return None
    spec = operations.spec(step)
    safe = spec is not None and not spec.network and (spec.read_only or spec.name == "tests_run")
    return Plan(steps=(step,)) if safe else None

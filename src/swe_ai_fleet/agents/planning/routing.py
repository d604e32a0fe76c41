"""Routing of requests by their words: how complex a request is, and whether it needs a model at all.

Complexity is a sum of weighted features, limited to 0 to 1; the same request always gets the same score. The largest
weight is on whether the steps can be known in advance: those of "implement", "debug" and "find out why" cannot, those
of "read", "list" and "rename" can. The fast path accepts only whole requests of a few fixed shapes, for read-only
operations and for running the repository's tests. Anything else goes to the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Set
from itertools import pairwise

from swe_ai_fleet.agents.planning.planner import Operations
from swe_ai_fleet.domain.trajectory import OnFailure, Plan, PlanStep

THRESHOLD = 0.7
"""From this complexity on, a request is worked on step by step; below, by a plan."""
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
MAX_CHARS = 200
_COURTESY = re.compile(
    r"^(?:(?:hi|hello|hey)[,!]? )?(?:please |(?:can|could|would) you (?:please )?|i want to |i'd like to )?",
    re.IGNORECASE,
)
_NAME = r"[A-Za-z0-9_.][A-Za-z0-9_.+-]{0,79}"
_PATH_GROUP = rf"(?P<path>(?:\./)?(?:{_NAME}/){{0,15}}(?:{_NAME})?)"
_SHOW = r"(?:read|show|print|display|open|view|cat)(?: me)?"
_NUMBER = r"\d{1,15}(?:\.\d{1,15})?"
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}|\d{1,2}/\d{1,2}/\d{4}")


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
# After these, and at the start of a sentence, a verb is an order ("port it", not "which port").
_BEFORE_A_VERB = _words("and or then to please you me also but first next finally just now . , ; : ! ? ( ) \n")
_QUESTION = _words("what which where when who is are does do did has can how")
_SEARCH_VERBS = _words("find search look list show get discover suggest recommend pick choose screen")
_QUALITIES = _words(
    "good best better safe safest new newest promising suitable reliable trustworthy popular cheap cheapest undervalued"
)
_SOFT = _words("why slow slower flaky sometimes intermittent race leak deadlock crash crashes fails failing")


def assess(request: str) -> float:
    """How complex a request is, from 0 (a single lookup) to 1 (open-ended work).

    The time is linear in its length; only the first 20,000 characters are read.
    """
    text = request[:_MAX_CHARS]
    outside = text.split("```")
    prose, fences = " ".join(outside[::2]), len(outside) // 2
    lowered = prose.lower()
    tokens = _WORD.findall(lowered)
    orders = [word for before, word in pairwise(["\n", *tokens]) if before in _BEFORE_A_VERB]
    words = [token for token in tokens if token[0].isalpha()]
    words_present, size = set(words), len(words)
    steps = len(_SEQUENCE.findall(lowered)) + max(0, len(_ITEM.findall(prose)) - 1)
    mentions = len({*_PATH.findall(prose), *_NAMED.findall(prose)})
    asks = prose.rstrip().endswith("?") or (bool(words) and words[0] in _QUESTION)
    weights = (
        _verbs(orders),
        min(0.3, 0.1 * steps),
        min(0.3, 0.15 * len(_CONDITION.findall(lowered))),
        min(0.2, 0.1 * len(_EVERY.findall(lowered))),
        min(0.16, 0.04 * max(0, mentions - 1)),
        0.0 if size <= 25 else 0.1 if size <= 60 else 0.2 if size <= 150 else 0.35,
        min(0.2, 0.1 * fences),
        0.25 if _TRACE.search(text) else 0.0,
        _selection(orders, words_present),
        0.2 if words_present & _SOFT else 0.0,
        -0.2 if asks and not words_present & _CHANGE else 0.0,
    )
    return round(min(1.0, max(0.0, sum(weights))), 3)


def _verbs(orders: list[str]) -> float:
    opens, changes, reads = _verbs_in(orders, _OPEN), _verbs_in(orders, _CHANGE), _verbs_in(orders, _READ)
    if opens:
        return min(0.9, 0.75 + 0.05 * (len(opens) + len(changes) - 1))
    return min(0.6, 0.25 + 0.1 * len(changes)) if changes else min(0.3, 0.1 * max(0, len(reads) - 1))


def _verbs_in(words: list[str], verbs: Set[str]) -> list[str]:
    return list(dict.fromkeys(word for word in words if word in verbs))


def _selection(orders: list[str], present: Set[str]) -> float:
    """The weight of a search by qualities: candidates must be inspected before one can be chosen."""
    searches = _verbs_in(orders, _SEARCH_VERBS) and not _verbs_in(orders, _CHANGE)
    qualities = len(present & _QUALITIES) if searches else 0
    return 0.0 if not qualities else 0.4 if qualities == 1 else 0.75


_VAGUE = _words(
    "bug bugs error errors problem problems issue issues it this that them anything something everything all files "
    "file code information info docs documentation help ideas duplicates secrets vulnerabilities improvements"
)


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
    # A single word may be anything, unless the request calls it a file.
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
    # The search takes a regular expression; of the characters allowed here, only the dot must be escaped.
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
    """The single operation that a request asks for, as a plan; None in any doubt."""
    text = " ".join(request.split())
    if not text or len(text) > MAX_CHARS or "\0" in text:
        return None
    text = _COURTESY.sub("", text).rstrip(" .?!")
    for shape, read in _SHAPES:
        match = shape.fullmatch(text)
        arguments = read(match) if match else None
        if arguments is not None:
            return _plan(*arguments, operations)
    return None


def _plan(name: str, params: dict[str, object], operations: Operations) -> Plan | None:
    if name not in operations:
        return None
    step = operations.checked(PlanStep(tool="", operation=name, params=params, on_failure=OnFailure.REPLAN))
    if not isinstance(step, PlanStep):
        return None
    spec = operations.spec(step)
    safe = spec is not None and not spec.network and (spec.read_only or spec.name == "tests_run")
    return Plan(steps=(step,)) if safe else None

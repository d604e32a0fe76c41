"""Requests that name a single operation, answered without a model where nothing about them is in doubt.

Only whole requests of a few fixed shapes are taken, and only for operations that read; running the repository's tests
is the one exception, where it is asked for in so many words. Anything else is for the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from swe_ai_fleet.agents.planning.operations import Operations
from swe_ai_fleet.agents.planning.reading import DraftStep
from swe_ai_fleet.domain.plan import OnFailure, Plan, PlanStep

MAX_CHARS = 200
_COURTESY = re.compile(
    r"^(?:(?:hi|hello|hey)[,!]? )?(?:please |(?:can|could|would) you (?:please )?|i want to |i'd like to )?",
    re.IGNORECASE,
)
_NAME = r"[A-Za-z0-9_.][A-Za-z0-9_.+-]{0,79}"
_PATH = rf"(?P<path>(?:\./)?(?:{_NAME}/){{0,15}}(?:{_NAME})?)"
_SHOW = r"(?:read|show|print|display|open|view|cat)(?: me)?"
_NUMBER = r"\d{1,15}(?:\.\d{1,15})?"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_VAGUE = _words(
    "bug bugs error errors problem problems issue issues it this that them anything something everything all files "
    "file code information info docs documentation help ideas duplicates secrets vulnerabilities improvements"
)
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}|\d{1,2}/\d{1,2}/\d{4}")


def _shape(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


_FILE = _shape(rf"{_SHOW} (?:the )?(?:(?P<said>file|contents? of(?: the)?(?: file)?) )?{_PATH}")
_LIST = _shape(
    rf"(?:list|show)(?: me)?(?: all)?(?: the)? files(?: (?:in|under|of)(?: the)? {_PATH}(?: directory| folder)?)?"
)
_WHICH = _shape(rf"(?:what|which) files are(?: there)?(?: (?:in|under)(?: the)? {_PATH}(?: directory| folder)?)?")
_LS = _shape(rf"ls(?: {_PATH})?")
_STATUS = _shape(rf"(?:{_SHOW} |what is |what's )?(?:the )?git status")
_DIFF = _shape(rf"(?:{_SHOW} )?(?:the )?git diff")
_LOG = _shape(rf"(?:{_SHOW} )?(?:the )?(?:git log|(?:last|latest) (?P<count>\d{{1,2}}) commits)")
_TESTS = _shape(r"run (?:all )?(?:of )?(?:the |our |its )?(?:unit )?tests?(?: suite)?")
_SEARCH = _shape(
    r"(?:search (?:for|in files for)|grep(?: for)?|find(?: all)? (?:uses|usages|occurrences|mentions) of)"
    rf" (?P<quote>[\"'`]?)(?P<needle>[\w.-]{{2,80}})(?P=quote)(?: in(?: the)? {_PATH})?"
)
_SUM = _shape(
    rf"(?:what is |what's |calculate |compute |how much is |evaluate )?"
    rf"(?P<sum>[(\s-]{{0,8}}{_NUMBER}"
    rf"(?:[)\s]{{0,8}}(?:\*\*|//|[-+*/%])[(\s-]{{0,8}}{_NUMBER}){{1,20}}[)\s]{{0,8}}?)(?: ?=)?"
)


def _read(found: re.Match[str]) -> tuple[str, dict[str, object]] | None:
    path = found["path"]
    # A bare word may be anything, unless it was said to be a file.
    told = bool(found["said"]) or "/" in path.strip("./") or ("." in path.strip(".") and not path[-1:].isdigit())
    return ("files_read_file", {"path": path}) if told and path[-1:] not in ("", "/") else None


def _list(found: re.Match[str]) -> tuple[str, dict[str, object]] | None:
    path = found["path"]
    if path is not None and path.lower() in ("repository", "repo", "project", "workspace"):
        path = None
    return "files_list_files", {"path": path} if path else {}


def _log(found: re.Match[str]) -> tuple[str, dict[str, object]] | None:
    return "git_log", {"limit": int(found["count"])} if found["count"] else {}


def _search(found: re.Match[str]) -> tuple[str, dict[str, object]] | None:
    needle, path = found["needle"], found["path"]
    if needle.lower() in _VAGUE and not found["quote"]:
        return None
    if path is not None and path.lower() in ("repository", "repo", "project", "workspace", "code", "files"):
        path = None
    # What is searched for is text; only the dot among its characters would mean more to a search.
    pattern = needle.replace(".", r"\.")
    return "files_search_in_files", {"pattern": pattern, "path": path or "."}


def _sum(found: re.Match[str]) -> tuple[str, dict[str, object]] | None:
    expression = found["sum"].strip()
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
        found = shape.fullmatch(text)
        meant = read(found) if found else None
        if meant is not None:
            return _plan(*meant, operations)
    return None


def _end_of_courtesy(text: str) -> int:
    found = _COURTESY.match(text)
    return found.end() if found else 0


def _plan(name: str, params: dict[str, object], operations: Operations) -> Plan | None:
    if name not in operations:
        return None
    step = operations.checked(DraftStep(tool="", operation=name, params=params, on_failure=OnFailure.REPLAN))
    if not isinstance(step, PlanStep):
        return None
    spec = operations.spec(step)
    safe = spec is not None and not spec.network and (spec.read_only or spec.name == "tests_run")
    return Plan(steps=(step,)) if safe else None

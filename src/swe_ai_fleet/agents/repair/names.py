"""Names of tools: which operation a model means, and the names of other harnesses for the fleet's operations."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from swe_ai_fleet.domain.tool import OperationSpec

COMMENTARY = frozenset(
    {"explanation", "security_risk", "task_progress", "requires_approval", "thought", "justification", "tool_summary"}
)
"""Comment parameters of other harnesses; dropped if the operation has no such parameter."""
PARAMETERS: tuple[frozenset[str], ...] = tuple(
    frozenset(names.split())
    for names in (
        "path file_path filepath filename file file_name target_file absolute_path relative_path directory dir folder",
        "paths path file files file_path filepath filename filenames file_paths",
        "path_a file_a left a",
        "path_b file_b right b",
        "source src from old_path source_path from_path",
        "destination dst dest to new_path destination_path to_path target_path",
        "directory dir folder path",
        "command cmd script shell_command command_line bash_command",
        "content contents text file_text file_content body data",
        "old old_str old_string old_text search find",
        "new new_str new_string new_text replace replacement",
        "patch diff unified_diff",
        "pattern query regex regexp search_term q",
        "query q search_query search_term",
        "glob include include_pattern file_pattern glob_pattern",
        "url uri link href address",
        "message msg commit_message",
        "code script source_code python_code",
        "sql query statement",
        "cypher query statement",
        "question query prompt text",
        "expression expr formula input",
        "start_line start line_start from_line start_line_one_indexed",
        "end_line end line_end to_line end_line_one_indexed",
        "timeout_seconds timeout seconds",
        "max_results limit max_count",
        "names name tools tool tool_names",
        "result message summary text final_answer content reason answer response output reply",
    )
)
"""Groups of parameter names with the same meaning; each is read as the one of its group that the operation has."""
_SHELL = frozenset({"description", "timeout", "timeout_ms", "is_input", "restart", "id", "security_risk"})
_PANE = frozenset({"description", "recursive", "depth", "show_hidden", "limit"})
MAX_NAME_CHARS = 200
_NAMESPACES = frozenset({"functions", "function", "defaultapi", "tools", "tool", "mcp", "api", "toolcall"})
_OPENING = re.compile(r"\A(?:<\|[^|<>]{0,40}\|>|<[a-z_]{1,20}[=>]|[\s\"'`*:])+", re.IGNORECASE)
_INVISIBLE = re.compile("[\u200b-\u200f\u2060\ufeff]")
_TARGET = re.compile(r"\bto=([A-Za-z0-9_.:-]+)")
_WORD = re.compile(r"[\w.:/-](?:[\w.:/ -]*[\w])?")
_NUMBERED = re.compile(r":\d{1,4}\Z")
_NEAR = 0.9
_CLEARLY_NEARER = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """One meaning of another harness's tool name.

    It applies if the arguments have all values of `when`, which are then removed. `renames` map its parameters to those
    of `target`, besides `PARAMETERS`; `ignored` parameters have no effect.
    """

    target: str
    when: Mapping[str, str] = field(default_factory=dict[str, str])
    renames: Mapping[str, str] = field(default_factory=dict[str, str])
    ignored: frozenset[str] = frozenset()


def _table() -> dict[str, tuple[Alias, ...]]:
    shell = Alias(target="shell_run_command", renames={"code": "command", "input": "command"}, ignored=_SHELL)
    read = Alias(target="files_read_file", ignored=frozenset({"description"}))
    write = Alias(
        target="files_write_file", renames={"code": "content"}, ignored=frozenset({"description", "overwrite"})
    )
    edit = Alias(target="files_edit_file", ignored=frozenset({"description"}))
    search = Alias(target="files_search_in_files", ignored=frozenset({"description"}))
    listing = Alias(target="files_list_files", ignored=_PANE)
    finding = Alias(target="files_list_files", renames={"pattern": "glob"}, ignored=_PANE)
    answer = Alias(target="final_answer", ignored=frozenset({"command", "task_completed"}))
    tests = Alias(target="tests_run")
    code = {"command": "code", "cmd": "code", "input": "code"}
    python = Alias(target="python_executor", renames=code, ignored=_SHELL)
    page = Alias(target="read_webpage", ignored=frozenset({"prompt"}))
    editor = tuple(
        Alias(target=target, when={"command": command}, ignored=frozenset({"description"}))
        for command, target in (
            ("view", "files_read_file"),
            ("create", "files_write_file"),
            ("str_replace", "files_edit_file"),
            ("undo_edit", "files_undo_edit"),
        )
    )
    return {
        name: meanings
        for names, meanings in (
            (
                "bash execute_bash run_bash bash_tool sh shell shell_command terminal run_terminal_cmd run_in_terminal "
                "execute_command run_shell_command run_shell exec exec_command execute_shell local_shell "
                "container_exec run_terminal_command execute_terminal_command",
                (shell,),
            ),
            ("read view cat open_file view_file file_read show_file read_text_file get_file_contents", (read,)),
            ("write create_file create save_file write_to_file file_write new_file write_text_file", (write,)),
            ("edit str_replace replace_in_file search_replace search_and_replace file_edit string_replace", (edit,)),
            ("str_replace_editor str_replace_based_edit_tool text_editor file_editor", editor),
            ("multiedit", (Alias(target="files_multi_edit"),)),
            ("ls dir list_dir list_directory list", (listing,)),
            ("glob find_files file_glob", (finding,)),
            ("grep rg ripgrep search search_files grep_search search_code find_in_files search_dir", (search,)),
            ("rm remove remove_file delete", (Alias(target="files_delete_file"),)),
            ("mv move rename rename_file", (Alias(target="files_move_file"),)),
            ("cp copy", (Alias(target="files_copy_file"),)),
            ("create_directory make_directory make_dir", (Alias(target="files_mkdir"),)),
            ("stat", (Alias(target="files_file_info"),)),
            ("undo", (Alias(target="files_undo_edit"),)),
            ("run_tests run_test test execute_tests test_runner", (tests,)),
            ("linter run_linter", (Alias(target="tests_lint"),)),
            ("python ipython execute_python run_python code_interpreter execute_ipython_cell", (python,)),
            ("fetch web_fetch fetch_url open_url browse", (page,)),
            ("search_web google_search internet_search", (Alias(target="web_search"),)),
            ("ask ask_human ask_followup_question ask_question", (Alias(target="ask_user"),)),
            (
                "submit finish attempt_completion complete task_complete complete_task done final finalize answer "
                "final_response submit_answer task_done",
                (answer,),
            ),
        )
        for name in names.split()
    }


ALIASES = _table()
"""The possible meanings of tool names of other harnesses; only operations with the same effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameReading:
    """The operation that a name means.

    `name` is empty if there is none, or several are possible; `repair` says how it was found, empty for an exact name;
    `near` are operations that the model may have meant.
    """

    name: str = ""
    repair: str = ""
    alias: Alias | None = None
    near: tuple[str, ...] = field(default=())


Fits = Callable[[str, Alias | None], bool]
"""Whether the arguments of the call fit an operation, under an alias or as they are."""


class OperationNames:
    """The names of one run's operations."""

    def __init__(self, specs: Iterable[OperationSpec]) -> None:
        self._specs = {spec.name: spec for spec in specs}

    @cached_property
    def _folded(self) -> dict[str, tuple[str, ...]]:
        return _index((_folded(name), name) for name in self._specs)

    @cached_property
    def _operations(self) -> dict[str, tuple[str, ...]]:
        return _index((_folded(spec.operation), name) for name, spec in self._specs.items())

    def read(self, written: str, fits: Fits) -> NameReading:
        """The operation that a model means.

        Only exact or unambiguous names are accepted; of several possible operations, the one whose arguments `fits`.
        The order: the name as it is; without tags, quotes and argument text around it; with case, dashes, dots and
        spaces folded; without a namespace or a doubled prefix; with the toolkit's prefix; the names of other harnesses;
        nearly the same letters, for read-only operations.
        """
        if written in self._specs:
            return NameReading(name=written)
        bare = split_name(written)[0]
        if bare in self._specs:
            return NameReading(name=bare, repair=f"name_cleaned: {bare}")
        for folded in _spellings(bare):
            names = self._folded.get(folded, ())
            if len(names) == 1:
                return NameReading(name=names[0], repair=f"name_folded: {names[0]}")
        for folded in _spellings(bare):
            reading = self._by_operation(folded, fits) or self._by_alias(folded, fits)
            if reading is not None:
                return reading
        return self._nearest(bare, fits)

    def _by_operation(self, folded: str, fits: Fits) -> NameReading | None:
        """An operation without its toolkit's name. For a single word, the arguments must fit as well."""
        operations = self._operations.get(folded, ())
        if len(operations) != 1:
            return NameReading(near=operations) if operations else None
        only = operations[0]
        plain = (only,) if "_" in self._specs[only].operation else ()
        if folded in _ALIASES or not plain:
            plain = (only,) if fits(only, None) else ()
            targets = {alias.target for alias in _ALIASES.get(folded, ()) if fits(alias.target, alias)}
            if len({*plain, *targets}) > 1:
                return NameReading(near=tuple(sorted({*plain, *targets})))
        if len(plain) == 1:
            return NameReading(name=plain[0], repair=f"name_prefixed: {plain[0]}")
        return None if folded in _ALIASES else NameReading(near=operations)

    def _by_alias(self, folded: str, fits: Fits) -> NameReading | None:
        meanings = [alias for alias in _ALIASES.get(folded, ()) if alias.target in self._specs]
        matching = [alias for alias in meanings if fits(alias.target, alias)]
        if len(matching) == 1:
            alias = matching[0]
            return NameReading(name=alias.target, repair=f"name_alias: {alias.target}", alias=alias)
        return NameReading(near=tuple(dict.fromkeys(alias.target for alias in meanings))) if meanings else None

    def _nearest(self, bare: str, fits: Fits) -> NameReading:
        near = difflib.get_close_matches(bare, self._specs, n=3, cutoff=0.6)
        scores = [difflib.SequenceMatcher(None, name, bare).ratio() for name in near]
        if near and scores[0] >= _NEAR and (len(near) == 1 or scores[0] - scores[1] >= _CLEARLY_NEARER):
            spec = self._specs[near[0]]
            # A similar name is a guess, and a guess must not have side effects.
            if spec.read_only and not spec.executes and not spec.network and fits(spec.name, None):
                return NameReading(name=spec.name, repair=f"name_nearest: {spec.name}")
        return NameReading(near=tuple(near))


def split_name(written: str) -> tuple[str, str]:
    """The name without tags, quotes and tokens around it, and the text after it that looks like arguments."""
    written = _INVISIBLE.sub("", written)
    target = _TARGET.search(written[: 2 * MAX_NAME_CHARS])
    if target is not None:
        return target[1][:MAX_NAME_CHARS], ""
    opening = _OPENING.match(written[:MAX_NAME_CHARS])
    start = opening.end() if opening else 0
    word = _WORD.match(written[start : start + MAX_NAME_CHARS])
    if word is None:
        return written[:MAX_NAME_CHARS].strip(), ""
    rest = written[start + word.end() :].lstrip(" \t\r\n\"'`*>")
    return _NUMBERED.sub("", word[0]), rest if rest[:1] in ("{", "(") else ""


def _spellings(bare: str) -> list[str]:
    """The folded name; then without the namespaces before it, and with a doubled first word once."""
    words = [word for word in re.split(r"[^A-Za-z0-9]+", bare) if word]
    spellings = [_folded(bare)]
    while len(words) > 1 and (_folded(words[0]) in _NAMESPACES or _folded("".join(words[:2])) in _NAMESPACES):
        words = words[1 if _folded(words[0]) in _NAMESPACES else 2 :]
        spellings.append(_folded("".join(words)))
    if len(words) > 1 and words[0].casefold() == words[1].casefold():
        spellings.append(_folded("".join(words[1:])))
    return [folded for folded in dict.fromkeys(spellings) if folded]


@lru_cache(maxsize=4_096)
def _folded(name: str) -> str:
    plain = unicodedata.normalize("NFKC", name).casefold()
    return "".join(character for character in plain if character.isalnum())


def _index(pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    index: dict[str, tuple[str, ...]] = {}
    for key, name in pairs:
        index[key] = (*index.get(key, ()), name)
    return index


_ALIASES: Mapping[str, tuple[Alias, ...]] = {_folded(name): meanings for name, meanings in ALIASES.items()}

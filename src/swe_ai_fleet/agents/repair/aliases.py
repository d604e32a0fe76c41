"""The names under which models ask for our operations because other harnesses call theirs so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """One meaning of a name.

    It holds where each of `when` stands in the arguments with that value; those are taken out then. `renames` are
    their parameters by ours, on top of what `PARAMETERS` says; `ignored` ones change nothing that we do.
    """

    target: str
    when: Mapping[str, str] = field(default_factory=dict[str, str])
    renames: Mapping[str, str] = field(default_factory=dict[str, str])
    ignored: frozenset[str] = frozenset()


COMMENTARY = frozenset(
    {"explanation", "security_risk", "task_progress", "requires_approval", "thought", "justification", "tool_summary"}
)
"""What other harnesses let models say beside the arguments; left out where an operation has no such parameter."""

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
"""Groups of parameter names that mean the same; one of a group stands for another that the operation has instead."""

_SHELL = frozenset({"description", "timeout", "timeout_ms", "is_input", "restart", "id", "security_risk"})
_PANE = frozenset({"description", "recursive", "depth", "show_hidden", "limit"})


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
"""By the name that a model writes, what it may mean; only operations of that very meaning."""

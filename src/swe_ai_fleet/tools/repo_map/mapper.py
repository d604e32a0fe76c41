"""The fleet's side of the map: runs the program in the sandbox and validates its output."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.sandbox import concealment, jail
from swe_ai_fleet.tools.definition import ToolFailure, ToolTimeout

TIMEOUT_SECONDS = 150.0
PARSE_SECONDS = 60.0
"""Files that are not parsed by then are left to the next call, which finds the others in the cache."""

MAX_FOCUS_CHARS = 20_000
CHARS_PER_TOKEN = 4
"""A rough estimate for code and English; no tokenizer is used."""

_OUTPUT_LIMIT = 256 * 1024
_START = """\
import json, os, sys
from importlib.util import module_from_spec, spec_from_file_location
code, packages, request = json.loads(sys.argv[1])
code = next(filter(os.path.isdir, code))
sys.path += filter(os.path.isdir, packages)
spec = spec_from_file_location("repo_map", code + "/__init__.py", submodule_search_locations=[code])
sys.modules["repo_map"] = module_from_spec(spec)
from repo_map.program import main
main(json.dumps(request))
"""


class RepoMap(BaseModel):
    """A map as text, with the numbers of shown and of all definitions and files.

    `left_out` files exceed the limits or are unreadable; `unread` ones were not parsed for lack of time.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    text: str
    shown_definitions: int
    shown_files: int
    definitions: int
    files: int
    left_out: int
    unread: int


async def draw_map(
    workspace: Workspace, scope: str, focus: list[str], *, max_tokens: int, narrow: bool = False
) -> RepoMap:
    """A map, of at most `max_tokens` tokens, of the files below `scope`, a real path below the root.

    A `narrow` map holds only definitions that are relevant to the focus.

    Raises ToolFailure if it takes too long or the program fails.
    """
    max_chars = max_tokens * CHARS_PER_TOKEN
    request = {"scope": scope, "focus": focus, "max_chars": max_chars, "narrow": narrow, "seconds": PARSE_SECONDS}
    code = [f"{concealment.code().inside}/tools/repo_map", str(Path(__file__).parent)]
    packages = [concealment.packages().inside, concealment.packages().outside]
    # Isolated and without site: only the standard library and these directories can be imported.
    argv = (*jail.python(workspace.environment), "-I", "-S", "-B", "-c", _START, json.dumps([code, packages, request]))
    result = await workspace.run(Command(argv=argv, timeout_seconds=TIMEOUT_SECONDS, output_limit=_OUTPUT_LIMIT))
    if result.timed_out:
        raise ToolTimeout(f"the map was not drawn within {TIMEOUT_SECONDS:g} seconds; give a narrower path")
    if not result.ok:
        stderr = result.stderr.text().strip().rpartition("\n")[2][:300]
        raise ToolFailure(f"the map could not be drawn: {stderr or f'exit code {result.exit_code}'}")
    try:
        drawn = RepoMap.model_validate_json(result.stdout.head + result.stdout.tail)
    except ValidationError:
        raise ToolFailure("the map could not be drawn: the program in the sandbox gave no proper answer") from None
    return drawn.model_copy(update={"text": drawn.text[:max_chars]})


def described(drawn: RepoMap, path: str) -> str:
    """The map with a last line that says what is missing in it and how to see that."""
    notes: list[str] = []
    if not drawn.files and not drawn.unread:
        notes.append(f"there is not a source file in a language that is parsed below {path!r}")
    elif drawn.shown_definitions == drawn.definitions:
        notes.append(f"all {drawn.definitions} definitions of {drawn.files} files")
    else:
        notes.append(
            f"{drawn.shown_definitions} of {drawn.definitions} definitions, in {drawn.shown_files} of {drawn.files} "
            "files; a narrower path, other focus words or more max_tokens show others"
        )
    if drawn.unread:
        notes.append(f"{drawn.unread} files were not parsed for lack of time: call again to go on")
    if drawn.left_out:
        notes.append(f"{drawn.left_out} files left out: too many, too large or unreadable")
    return "\n".join(filter(None, (drawn.text, f"[{'. '.join(notes)}]")))

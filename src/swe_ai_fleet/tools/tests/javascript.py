"""Plans for npm packages: the runners that a test script starts, with options for events and for a selection."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from swe_ai_fleet.domain.json_values import json_object, mapping, string
from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.tests.inventory import Inventory, test_script
from swe_ai_fleet.tools.tests.plan import Fallback, Selection, SuitePlan, not_installed
from swe_ai_fleet.tools.tests.scripts import ScriptCommand, ScriptLine, read_line, words_of


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limit:
    """A runner's time limit of a test: its option, its default, and its setting with a pattern of settings files."""

    option: str
    usual: str
    setting: str
    files: str


NPM_TEST = ("npm", "test")
_ABSENT = not_installed("node", "Node.js and npm")
_NODE_TEST = re.compile(r"(?:test|test-.+|.+[.-]test|.+_test)\.[cm]?[jt]s")
_VALUED = frozenset(
    {
        *("-r", "--require", "--import", "--loader", "--experimental-loader", "-c", "--config", "-C", "--conditions"),
        *("-t", "--timeout", "--testTimeout", "-R", "--reporter", "--ui", "--env", "--maxWorkers", "-w", "--root"),
        *("--dir", "--environment", "--pool", "--ext", "--extension", "-p", "--project", "-g", "--grep", "--opts"),
    }
)
_CONFIGS = ("-c", "--config")
_SILENT = ("--silent", "-s", "--ignore-scripts")
_MAX_NODE_FILES = 500
_MAX_FIRST = 200
_VARIABLES = {"npm_config_update_notifier": "false", "npm_config_fund": "false", "npm_config_audit": "false"}
_REPORTER = re.compile(r"(?<=\s)(?:-R|--reporter)(?:=|\s+)?[\w./-]+")
# The runners' own limits, which do not allow for a loaded machine. Our reporters handle those of mocha and vitest.
_LIMITS = {
    "jest": _Limit(
        option="--testTimeout", usual="5000", setting="testTimeout", files=r"jest\.config\.[cm]?[jt]s(?:on)?"
    ),
    "tap": _Limit(option="--timeout", usual="30", setting="timeout", files=r"\.taprc(?:\.ya?ml)?"),
    "ava": _Limit(option="--timeout", usual="10s", setting="timeout", files=r"ava\.config\.[cm]?js"),
}
# Signs that settings are in other files.
_INDIRECT = re.compile(r"preset['\"]?\s*:\s*['\"]\.|(?:require\(|from )\s*['\"]\.|\.\.\.|extends\b")
_STREAMED = frozenset({"jest", "vitest", "mocha", "node"})
# Node before 18.17 has no reporters; a script may also set options that conflict with ours.
_UNUSABLE = re.compile(
    r"bad option|ERR_(?:INVALID_ARG_VALUE|MODULE_NOT_FOUND)|Unrecognized option|[Uu]nknown option", re.M
)


@dataclass(frozen=True, kw_only=True)
class JavaScript:
    """Makes plans for the package in `root`; commands see the workspace at `mount` and our reporters at `programs`."""

    inventory: Inventory
    root: str
    mount: str
    programs: str

    def plan(self, selection: Selection, base: tuple[str, ...] = NPM_TEST) -> SuitePlan:
        """The plan for the tests that a command starts through the package's scripts, without linters.

        Raises:
            ToolFailure: No test script, or a selection that its runner does not support.
        """
        scripts = self._scripts()
        if base[:2] == NPM_TEST and not test_script(self._manifest):
            raise ToolFailure(
                "package.json has no test script; use tests_run, or shell_run_command with its own command"
            )
        script = read_line(shlex.join(base), scripts)
        if script is None or not script.runner or (len(script.runners) > 1 and selection.some):
            if selection.some or selection.deselect:
                raise ToolFailure(
                    "the package's test script starts no single runner that can be given paths or a keyword from here: "
                    "call it without them, or select with shell_run_command"
                )
            if script is None or not script.runner:
                return self._unknown(base, script)
        typed = tuple(word for word in base if word not in _SILENT)
        runners = {part.runner for part in script.runners}
        chosen = [self._chosen(part.runner, selection) for part in script.runners]
        steering = {
            "first": [group[:_MAX_FIRST] for group in selection.first],
            "deselect": selection.deselect,
            "only": [path.partition("::")[0] for path in selection.paths],
        }
        reported = [self._reported(part, words, selection) for part, words in zip(script.runners, chosen, strict=True)]
        plain = [_with_words(part, words, selection) for part, words in zip(script.runners, chosen, strict=True)]
        streamed = runners <= _STREAMED
        return SuitePlan(
            framework=script.runner if len(runners) == 1 else "npm",
            argv=self._shell(script, reported),
            typed=(*typed, *(("--", *chosen[0]) if chosen[0] else ())),
            absent=_ABSENT,
            cwd=self.root,
            variables={
                **self._variables(),
                "FLEET_TEST_ROOT": self.mount,
                **({"FLEET_TEST_OPTIONS": json.dumps(steering)} if any(steering.values()) else {}),
            },
            stream="file" if streamed else "output",
            fallbacks=(
                Fallback(
                    argv=self._shell(script, plain),
                    pattern=_UNUSABLE,
                    note="this version of the runner takes no reporter of ours: its output tells",
                    stream="output",
                ),
            )
            if streamed
            else (),
            notes=_notes(script),
        )

    def _unknown(self, base: tuple[str, ...], script: ScriptLine | None) -> SuitePlan:
        """The plan for a script without a known runner, without its linters; its output is searched for reports."""
        if script is None or not script.left_out:
            argv, notes = (*base, "--silent") if base == NPM_TEST else base, ()
        else:
            argv, notes = self._shell(script, script.runners), _notes(script)
        return SuitePlan(
            framework="npm",
            unknown="it starts no known test runner",
            argv=argv,
            typed=tuple(word for word in base if word not in _SILENT),
            absent=_ABSENT,
            cwd=self.root,
            variables=self._variables(),
            stream="output",
            notes=notes,
        )

    def _shell(self, script: ScriptLine, commands: Sequence[str | ScriptCommand]) -> tuple[str, ...]:
        """The argv that runs commands of a script with the PATH of npm's scripts."""
        depth = len(PurePosixPath(self.root).parts)
        programs = ":".join(f"$PWD/{'../' * up}node_modules/.bin" for up in range(depth + 1))
        lines = [f'PATH="{programs}:$PATH"; export PATH', *(part.text for part in script.before)]
        texts = [command if isinstance(command, str) else command.text for command in commands]
        if len(texts) == 1:
            return ("sh", "-c", "\n".join((*lines, texts[0])))
        return ("sh", "-c", "\n".join((*lines, "s=0", *(f"{text} || s=$?" for text in texts), "exit $s")))

    def _reported(self, part: ScriptCommand, chosen: Sequence[str], selection: Selection) -> str:
        """A runner's command with our reporter."""
        prefix = f"{self.programs}/fleet_"
        match part.runner:
            case "jest":
                reporters = ("--reporters=default", f"--reporters={prefix}jest.cjs")
                own = (*reporters, f"--testSequencer={prefix}jest.cjs", "--bail=0")
            case "vitest":
                own = ("--reporter=default", f"--reporter={prefix}vitest.mjs", "--bail=0")
            case "mocha":
                own = (f"--require={prefix}mocha.cjs", f"--reporter={prefix}mocha.cjs", "--no-bail")
            case "node":
                reporter = f"--test-reporter={prefix}node.mjs"
                first = (f"--require={prefix}node_skip.cjs", reporter, "--test-reporter-destination=stdout")
                tail = re.sub(r"\s--test-reporter(?:-destination)?(?:=|\s+)\S+", "", part.tail)
                part = replace(part, head=f"{part.head} {shlex.join(first)}", tail=tail)
                own = ()
            case _:
                own = ()
        return _with_words(self._with_longer_limit(part), (*own, *chosen), selection)

    def _with_longer_limit(self, part: ScriptCommand) -> ScriptCommand:
        """A runner's command with its own limit of a test multiplied like the supervisor's (FLEET_TEST_LONGER)."""
        limit = _LIMITS.get(part.runner)
        if limit is None:
            return part
        pattern = re.compile(rf"(?<=\s)({limit.option}(?:=|\s+))(\d+)(?=\w*(?:\s|$))")
        if limit.option in words_of(part.tail.replace("=", " ")):
            return replace(part, tail=pattern.sub(r"\1$((\2*${FLEET_TEST_LONGER:-1}))", part.tail))
        seconds = self._own_limit(limit, part)
        if not seconds:
            return part
        number = seconds.rstrip("ms")
        option = f"{limit.option}=$(({number}*FLEET_TEST_LONGER)){seconds[len(number) :]}"
        return replace(part, tail=f"{part.tail} ${{FLEET_TEST_LONGER:+{option}}}")

    def _own_limit(self, limit: _Limit, part: ScriptCommand) -> str:
        """The limit of a test in the settings, or the runner's default; empty if it cannot be determined."""
        words = words_of(part.tail.replace("=", " "))
        named = [_above(words[index + 1], self.root) for index, word in enumerate(words[:-1]) if word in _CONFIGS]
        usual = [path for path in self.inventory.files if re.fullmatch(limit.files, _below(path, self.root))]
        texts = [json.dumps(json_object(self._manifest).get(part.runner)), *map(self.inventory.text, named or usual)]
        text = "\n".join(texts)
        if match := re.search(rf"\b{limit.setting}\b['\"]?\s*:\s*['\"]?(\d[\d_]*(?:ms|s|m)?)(?!\s*\*)\b", text):
            return match[1].replace("_", "")
        return "" if limit.setting in text or _INDIRECT.search(text) else limit.usual

    def _chosen(self, runner: str, selection: Selection) -> tuple[str, ...]:
        """The words of a selection for a runner. Raises ToolFailure if the runner does not support it."""
        split = [path.partition("::") for path in selection.paths]
        files = [_below(path, self.root) for path, _, _ in split]
        titles = [title for _, _, title in split if title]
        word = selection.keyword
        if word and titles:
            raise ToolFailure("a keyword and ids of tests exclude each other: give either")
        if titles and len(titles) == len(split):
            either = "|".join(dict.fromkeys(_literal(re.sub(r" \(\d+\)$", "", title)) for title in titles))
            word = f"^(?:{either.replace(' > ', ' ')})$" if runner != "node" else ""
        if selection.deselect and runner in ("jest", "vitest"):
            without = "|".join(_literal(name.partition("::")[2]).replace(" > ", " ") for name in selection.deselect)
            word = f"^(?!(?:{without})$){'.*(?:' + word + ')' if word else ''}"
        elif selection.deselect and runner != "mocha":
            raise ToolFailure(f"{runner} cannot leave out single tests from here: name the files to run instead")
        operands = [f"./{path}" if path.startswith(("-", "@")) else path for path in dict.fromkeys(files)]
        match runner:
            case "jest":
                whole = all(_above(path, self.root) in self.inventory.files for path in files)
                names = ("--runTestsByPath", *operands) if whole else tuple(f"/{_literal(path)}" for path in files)
                return (*_option("--testNamePattern", word), *(names if files else ()))
            case "vitest":
                return (*_option("--testNamePattern", word), *operands)
            case "mocha":
                return (*_option("--grep", word), *(("--recursive", *operands) if operands else ()))
            case "ava":
                return (*_option("--match", f"*{word}*" if word else ""), *operands)
            case "tap" if not word:
                return tuple(operands)
            case "node":
                test_files = dict.fromkeys(file for path in files for file in self._node_files(path))
                names = [f"./{path}" if path.startswith(("-", "@")) else path for path in test_files]
                return (*_option("--test-name-pattern", word), *names)
            case _:
                if word or files:
                    raise ToolFailure(f"{runner} takes no paths or keyword from here: select with shell_run_command")
                return ()

    def _node_files(self, path: str) -> list[str]:
        """The test files in a directory that node would find; newer versions of node accept only names of files."""
        directory = _above(path, self.root)
        if directory in self.inventory.files:
            return [path]
        prefix = "" if directory == "." else f"{directory}/"
        files = sorted(
            _below(file, self.root)
            for file in self.inventory.files
            if file.startswith(prefix)
            and (_NODE_TEST.fullmatch(PurePosixPath(file).name) or "test" in PurePosixPath(file).parts[:-1])
            and PurePosixPath(file).suffix in (".js", ".cjs", ".mjs")
        )
        if not files:
            raise ToolFailure(f"there are no test files in {path!r}")
        return files[:_MAX_NODE_FILES]

    @property
    def _manifest(self) -> str:
        return self.inventory.text("package.json" if self.root == "." else f"{self.root}/package.json")

    def _scripts(self) -> Mapping[str, str]:
        scripts = mapping(json_object(self._manifest), "scripts")
        return {name: text for name, text in scripts.items() if isinstance(text, str)}

    def _variables(self) -> dict[str, str]:
        manifest = json_object(self._manifest)
        named = {f"npm_package_{name}": string(manifest.get(name)) for name in ("name", "version")}
        return {**_VARIABLES, "npm_lifecycle_event": "test", **{name: text for name, text in named.items() if text}}


def _with_words(part: ScriptCommand, words: Sequence[str], selection: Selection) -> str:
    """A runner's command with further words; selected tests replace the ones it names."""
    tail = _without_names(part) if selection.paths else part.tail
    # After one failure, the other tests would not be run.
    tail = re.sub(r"(?<=\s)--bail(?:=\S+)?(?=\s|$)", "", tail)
    if part.runner == "vitest" and not re.search(r"(?:^|\s)(?:--)?run\b", tail):
        tail = f"{tail} --run"
    if part.runner == "jest" and re.search(r"(?:react-scripts|craco) test$", part.head):
        tail = f" --watchAll=false{tail}"
    if part.runner == "ava" and "--tap" not in words_of(tail):
        tail = f" --tap{tail}"
    if part.runner == "tap":
        # Most of its reporters do not print the names of passed tests.
        tail = _REPORTER.sub("-R tap", tail)
    if part.runner != "node":
        return f"{part.head}{tail} {shlex.join(words)}".strip()
    # Node treats options after file names as arguments of those files.
    options = [word for word in words if word.startswith("-")]
    names = [word for word in words if not word.startswith("-")]
    return " ".join(filter(None, (part.head, shlex.join(options), tail.strip(), shlex.join(names))))


def _without_names(part: ScriptCommand) -> str:
    """The tail of a runner's command without names of tests: only a subcommand, options and their values."""
    words: list[str] = []
    valued = False
    for position, match in enumerate(re.finditer(r"(?:[^\s\"'\\]|\\.|\"[^\"]*\"|'[^']*')+", part.tail)):
        word = match[0]
        subcommand = position == 0 and part.runner == "vitest" and word in ("run", "watch", "dev")
        if (word.startswith("-") and word != "--") or valued or subcommand:
            words.append(word)
        valued = word in _VALUED and not valued
    return "".join(f" {word}" for word in words)


def _notes(script: ScriptLine) -> tuple[str, ...]:
    return (f"left out, since it tests nothing: {'; '.join(script.left_out)}",) if script.left_out else ()


def _option(name: str, value: str) -> tuple[str, ...]:
    return (f"{name}={value}",) if value else ()


def _literal(path: str) -> str:
    """A path as a regular expression that matches itself."""
    return re.sub(r"([.*+?^${}()|\[\]\\/])", r"\\\1", path)


def _below(path: str, root: str) -> str:
    return path if root == "." else path.removeprefix(root).removeprefix("/") or "."


def _above(path: str, root: str) -> str:
    return path if root == "." else root if path == "." else f"{root}/{path}"

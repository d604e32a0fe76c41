"""The linters that a repository configures, from its settings files and the commands of its automation. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase, translate
from pathlib import PurePosixPath

from swe_ai_fleet.domain.json_values import items, json_object, mapping, mappings, parsed, string
from swe_ai_fleet.tools.tests.inventory import MAKEFILES
from swe_ai_fleet.tools.tests.scripts import words_of

_PYTHON = (".py", ".pyi")
_SCRIPT = (".js", ".cjs", ".mjs", ".jsx", ".ts", ".cts", ".mts", ".tsx")
_PAGES = (*_SCRIPT, ".vue", ".svelte")
_LINTERS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "ruff": (_PYTHON, ("ruff.toml", ".ruff.toml")),
    "ruff format": (_PYTHON, ()),
    "flake8": (_PYTHON, (".flake8",)),
    "pylint": (_PYTHON, ("pylintrc", ".pylintrc", "pylintrc.toml", ".pylintrc.toml")),
    "mypy": (_PYTHON, ("mypy.ini", ".mypy.ini")),
    "pyright": (_PYTHON, ("pyrightconfig.json",)),
    "eslint": (_PAGES, ("eslint.config.*", ".eslintrc", ".eslintrc.*")),
    "biome": (_SCRIPT, ("biome.json", "biome.jsonc")),
    "prettier": (_PAGES, (".prettierrc", ".prettierrc.*", "prettier.config.*")),
    "gofmt": ((".go",), ("go.mod",)),
    "go vet": ((".go",), ("go.mod",)),
    "rustfmt": ((".rs",), ("rustfmt.toml", ".rustfmt.toml")),
    "clippy": ((".rs",), ("clippy.toml", ".clippy.toml")),
}
"""By linter: the suffixes of the files it checks, and the names of settings files whose existence configures it."""

_SECTIONS: Mapping[str, re.Pattern[str]] = {
    "pyproject.toml": re.compile(r"^\[{1,2}tool\.(ruff\.format|ruff|flake8|pylint|mypy|pyright)\b", re.M),
    **dict.fromkeys(("setup.cfg", "tox.ini"), re.compile(r"^\[(flake8|mypy|pylint)\b", re.M)),
    **dict.fromkeys(("ruff.toml", ".ruff.toml"), re.compile(r"^\[(format)\]", re.M)),
    "Cargo.toml": re.compile(r"^\[(?:workspace\.)?lints\.(clippy)\]", re.M),
}
_NAMED = {"ruff.format": "ruff format", "format": "ruff format", "eslintConfig": "eslint"}
_MYPY_FILES = re.compile(r"^\[(?:tool\.)?mypy\](?:\n(?!\[).*)*?\n(?:files|packages|modules)\s*=", re.M)
_NEEDED = ("go.mod", "Cargo.toml")
_NAMES = [pattern for _, patterns in _LINTERS.values() for pattern in patterns] + [
    *(*_SECTIONS, *MAKEFILES, "package.json", "noxfile.py", ".pre-commit-config.yaml"),
    *(".eslintignore", ".prettierignore"),
]
_SETTING = re.compile("|".join(map(translate, _NAMES)))

_PROGRAMS = {
    **{name: name for name in _LINTERS if name not in ("gofmt", "go vet", "clippy")},
    "cargo clippy": "clippy",
    "cargo fmt": "rustfmt",
    "pretty-quick": "prettier",
}
"""The linter that a command runs, by the command's beginning; Go's linters need no command."""
_HOOKS = {
    "ruff-format": "ruff format",
    "clippy": "cargo clippy",
    "fmt": "cargo fmt",
    **{f"{program}-{verb}": program for program in ("ruff", "biome") for verb in ("check", "ci", "lint")},
}
_RUNNERS = frozenset(
    {"python", "python3", "uv", "uvx", "poetry", "pdm", "hatch", "pipenv", "rye", "run", "exec"}
    | {"npx", "npm", "pnpm", "yarn", "bun", "bunx", "node"}
)
_SUBCOMMANDS = frozenset({"check", "ci", "format", "lint"})
_ENDS = re.compile(r"&&|\|\||[;|]")
_TOX_COMMANDS = re.compile(r"^commands\s*=((?:.*\n)(?:[ \t]+.*\n|[ \t]*\n)*)", re.M)
_TOX_FACTOR = re.compile(r"^\s*-?\s*(?:[\w{},.!-]+:\s+)?")
_POSARGS = re.compile(r"\{posargs:?([^{}]*)\}")
_NOX_RUN = re.compile(r"session\.run\w*\(([^()]*)\)")
_LITERAL = re.compile(r"""["']([^"'\n]*)["']""")
_NOT_KEPT = re.compile(
    r"-(?:[wilqdfvjo]\d*|-(?:fix|junit|write|cache|check|diff|list|quiet|verbose|color|watch|statistics|count|show|exit|"
    r"output|format|report|in-place|save|add-noqa|install-types|non-interactive|\w+-report).*)"
)
"""Options that write files or change the output."""
_GLOB = re.compile(r"[*?{\[]")
_VALUED = re.compile("exclude|config|rcfile|ignore-path|-c$")
_SAMPLES = frozenset({"test", "tests", "__tests__", "fixtures", "testdata", "templates", "examples"})
_FOREIGN = frozenset({"node_modules", "vendor", "_vendor", "third_party"})
_MAX_SETTINGS = 60
_MAX_DEPTH = 5
_MAX_HOOKS = 100
_MAX_TARGETS = 100
_MAX_TEXT_CHARS = 256 * 1024
_MAX_YAML_CHARS = 64 * 1024
_MAX_COMMAND_CHARS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Linter:
    """A linter that is configured in a directory.

    Args:
        directory: Where it is run, relative to the workspace.
        options: The options of the repository's own command, if there are no settings files.
        targets: The paths below `directory` that the repository's commands name; empty: every file.
        lists_files: Whether its settings list the files to check.
    """

    name: str
    directory: str = "."
    options: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    lists_files: bool = False

    def reads(self, path: str) -> bool:
        """Whether the linter is configured to check a file of the workspace."""
        inside = self.directory == "." or path.startswith(f"{self.directory}/")
        if not inside or not path.endswith(_LINTERS[self.name][0]):
            return False
        below = path if self.directory == "." else path.removeprefix(f"{self.directory}/")
        return not self.targets or any(below == target or below.startswith(f"{target}/") for target in self.targets)


def is_lint_setting(path: str) -> bool:
    """Whether a file configures linters or their rules; manifests of dependencies do not count."""
    name = PurePosixPath(path).name
    return name not in _NEEDED and bool(_SETTING.fullmatch(name))


def configured_linters(files: Collection[str], text: Callable[[str], str]) -> tuple[Linter, ...]:
    """The linters that a repository configures and has files for, each in the outermost directories that configure it.

    Args:
        files: All paths, relative to the workspace.
        text: Returns the text of a file; empty if it cannot be read.
    """
    with_settings: dict[tuple[str, str], bool] = {}
    with_command: dict[tuple[str, str], list[Linter]] = {}
    directories = {path.rpartition("/")[0] for path in files}
    paths = {*files, *directories, *(str(parent) for path in directories for parent in PurePosixPath(path).parents)}
    for path in _settings(files):
        content = text(path)[:_MAX_TEXT_CHARS]
        directory, name = str(PurePosixPath(path).parent), PurePosixPath(path).name
        for linter in _configured_by(name, content):
            key = (linter, directory)
            with_settings[key] = with_settings.get(key, False) or bool(_MYPY_FILES.search(content))
        for words in _commands(name, content):
            if (linter := _linter_of(words, directory, paths)) is not None:
                with_command.setdefault((linter.name, directory), []).append(linter)
    linters: list[Linter] = []
    for name in _LINTERS:
        outer: list[str] = []
        configured = (directory for linter, directory in {**with_settings, **with_command} if linter == name)
        for directory in sorted(configured, key=_depth):
            if any(above == "." or directory.startswith(f"{above}/") for above in outer):
                continue
            outer.append(directory)
            key = (name, directory)
            runs = with_command.get(key, [])
            targets = [target for run in runs for target in run.targets] if all(run.targets for run in runs) else []
            targets = tuple(dict.fromkeys(targets))[:_MAX_TARGETS]
            lists_files = with_settings.get(key, False)
            linter = Linter(name=name, directory=directory, targets=targets, lists_files=lists_files)
            linters.append(linter if key in with_settings else replace(linter, options=runs[0].options))
    return tuple(linter for linter in linters if any(map(linter.reads, files)))


def _settings(files: Iterable[str]) -> list[str]:
    """The files that may configure linters, nearest to the top first, without those of samples and vendored code."""
    named = [path for path in files if _SETTING.fullmatch(path.rsplit("/", 1)[-1]) and path.count("/") < _MAX_DEPTH]
    own = [path for path in named if not (_SAMPLES | _FOREIGN) & set(PurePosixPath(path).parts)]
    return sorted(own, key=_depth)[:_MAX_SETTINGS]


def _depth(path: str) -> tuple[int, str]:
    return (-1 if path == "." else path.count("/"), path)


def _configured_by(name: str, text: str) -> list[str]:
    """The linters that a file has settings for."""
    sections = _SECTIONS[name].findall(text) if name in _SECTIONS else []
    keys = [key for key in ("eslintConfig", "prettier") if name == "package.json" and key in json_object(text)]
    own = [linter for linter, (_, names) in _LINTERS.items() if any(fnmatchcase(name, each) for each in names)]
    return own + [_NAMED.get(section, section) for section in (*sections, *keys)]


def _commands(name: str, text: str) -> Iterator[list[str]]:
    """The commands in a file of automation, as words without shell expansion."""
    lines: Iterable[str] = ()
    if name in MAKEFILES:
        lines = (line.lstrip("\t@-+ ") for line in text.replace("\\\n", " ").split("\n") if line.startswith("\t"))
    elif name == "package.json":
        lines = map(string, mapping(json_object(text), "scripts").values())
    elif name == "tox.ini":
        blocks = _TOX_COMMANDS.findall(text.replace("\\\n", " ").replace("{toxinidir}/", "") + "\n")
        lines = (_POSARGS.sub(r"\1", _TOX_FACTOR.sub("", line)) for block in blocks for line in block.split("\n"))
    elif name == "noxfile.py":
        yield from (_LITERAL.findall(call) for call in _NOX_RUN.findall(text))
    elif name == ".pre-commit-config.yaml":
        yield from _hooks(text)
    for line in lines:
        yield from map(_words, _ENDS.split(line))


def _words(command: str) -> list[str]:
    return words_of(command[:_MAX_COMMAND_CHARS]) or command[:_MAX_COMMAND_CHARS].split()


def _hooks(text: str) -> Iterator[list[str]]:
    """The hooks of pre-commit as commands: a local hook by its entry, another hook by its tool."""
    import yaml

    try:
        # BaseLoader ignores merge keys, which can blow up; the C loader would crash on deeply nested text.
        document: object = parsed(yaml.load, text[:_MAX_YAML_CHARS], Loader=yaml.BaseLoader)
    except (yaml.YAMLError, ValueError):
        return
    for repository in mappings(mapping(document).get("repos"))[:_MAX_HOOKS]:
        for hook in mappings(repository.get("hooks"))[:_MAX_HOOKS]:
            name = string(hook.get("id"))
            words = map(string, items(hook.get("args")))
            yield [*_words(string(hook.get("entry")) or _HOOKS.get(name, name)), *words]


def _linter_of(words: list[str], directory: str, paths: Collection[str]) -> Linter | None:
    """The linter that a command runs, directly or through a package manager; None if it runs none."""
    for index, word in enumerate(words):
        program, following = word.rpartition("/")[2], words[index + 1 : index + 2]
        both = " ".join([program, *following])
        if name := _PROGRAMS.get(both) or _PROGRAMS.get(program):
            break
        if program not in _RUNNERS and not word.startswith(("-", "$")) and "=" not in word:
            return None
    else:
        return None
    prefix = "" if directory == "." else f"{directory}/"
    options, targets, everywhere, option = list[str](), list[str](), False, ""
    for word in words[index + (2 if both in _PROGRAMS or _SUBCOMMANDS.issuperset(following) else 1) :]:
        # A pattern counts as the directory before it.
        stem = _GLOB.split(word, maxsplit=1)[0]
        path = (stem if stem == word else stem.rpartition("/")[0]).removeprefix("./").rstrip("/")
        if word.startswith("-"):
            option = "" if _NOT_KEPT.fullmatch(word) else word
            if option:
                options.append(option)
            continue
        if option and "=" not in option and (_VALUED.search(option) or prefix + path not in paths):
            options.append(word)
        elif path in ("", "."):
            everywhere = True
        elif prefix + path in paths:
            targets.append(path)
        option = ""
    return Linter(name=name, directory=directory, options=tuple(options), targets=() if everywhere else tuple(targets))

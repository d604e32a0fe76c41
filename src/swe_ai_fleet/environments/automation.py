"""What a repository's automation says about its tests: tox, nox, Hatch, Makefiles, task runners, workflow files.

All of it is read as data; where only running it would tell, nothing is said.
"""

from __future__ import annotations

import ast
import configparser
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence

from swe_ai_fleet.environments.commands import Wish, read_commands, readable_variables, script_words
from swe_ai_fleet.environments.interpreters import PythonVersion
from swe_ai_fleet.environments.python_project import requirements, wanted
from swe_ai_fleet.environments.repository_files import (
    RepositoryFiles,
    Table,
    items,
    joined,
    parsed_yaml,
    string,
    strings,
    table,
)

_TEST_NAME = re.compile(
    r"(?:run[-_]?)?(?:unit[-_]?)?(?:tests?|pytest|unit|check|py3?|python)(?:[-_:]?(?:unit|py\w*|all|suite))?", re.I
)
_MAKE_INSTALL = (
    "install",
    "install-dev",
    "dev",
    "develop",
    "setup",
    "init",
    "deps",
    "sync",
    "requirements",
    ".install-deps",
)
_MAKE_TEST = ("test", "tests", "unittest", "unit-test", "pytest", "check")
_WORKFLOW_NAMES = re.compile(r"test|ci|build|main|python|check", re.I)
_WORKFLOW_OTHERS = re.compile(r"docs?|release|publish|lint|deploy|codeql|stale|labell?|benchmark", re.I)
_SUBSTITUTION = re.compile(r"\{(?P<name>[^{}:]*)(?::(?P<rest>[^{}]*))?\}")
_MAX_EXPANSIONS = 200
_MAX_STEPS = 2000


def read_automation(files: RepositoryFiles, directory: str, python: PythonVersion | None = None) -> tuple[Wish, ...]:
    """What each piece of automation wishes, the most telling first; for tox, with the environment of a Python."""
    found = [
        _tox(files, directory, python),
        _nox(files.text(joined(directory, "noxfile.py")), joined(directory, "noxfile.py")),
        _hatch(files, directory),
        _task_runners(files.toml(joined(directory, "pyproject.toml")), joined(directory, "pyproject.toml")),
        _makefile(files, directory),
        *(_workflows(files) if not directory else ()),
    ]
    return tuple(wish for wish in found if wish != Wish(source=wish.source))


# -- tox ---------------------------------------------------------------------------------------------------------------


def _tox(files: RepositoryFiles, directory: str, python: PythonVersion | None) -> Wish:
    pyproject = files.toml(joined(directory, "pyproject.toml"))
    own = table(table(pyproject.get("tool")).get("tox"))
    if text := string(own.get("legacy_tox_ini")):
        return _tox_ini(text, joined(directory, "pyproject.toml"), python)
    for name in ("tox.ini", "setup.cfg"):
        text = files.text(joined(directory, name))
        if re.search(r"^\[(?:tox:)?tox\]|^\[testenv\]", text, re.M):
            return _tox_ini(text, joined(directory, name), python)
    document = own or files.toml(joined(directory, "tox.toml"))
    return (
        _tox_toml(document, joined(directory, "pyproject.toml" if own else "tox.toml"), python) if document else Wish()
    )


def _tox_ini(text: str, source: str, python: PythonVersion | None) -> Wish:
    parser = configparser.RawConfigParser(strict=False, delimiters=("=", ":"), comment_prefixes=("#", ";"))
    try:
        parser.read_string(text)
    except configparser.Error:
        return Wish()
    sections = {name: dict(parser.items(name)) for name in parser.sections()}
    options = sections.get("tox", {}) | sections.get("tox:tox", {})
    names = _tox_names(options.get("envlist", "") or options.get("env_list", ""))
    chosen = _tox_choice(names, python)
    factors = frozenset(chosen.split("-"))
    # The section of the environment itself goes before the general one; its name may stand for several.
    own = next((name for name in sections if name.startswith("testenv:") and chosen in _tox_names(name[8:])), "")
    merged = sections.get("testenv", {}) | sections.get(own, {})
    if not merged:
        return Wish(source=source, pythons=tuple(names))

    def value(option: str) -> str:
        return _tox_value(merged.get(option, ""), sections)

    def lines(option: str) -> list[str]:
        text = value(option).replace("\\\n", " ")
        return [line for raw in text.splitlines() if (line := _for_factors(raw.strip(), factors, names))]

    commands = [*lines("commands_pre"), *lines("commands")]
    installs = [f"pip install {line}" for line in lines("deps")]
    wish = read_commands([words for text in (*installs, *commands) for words in script_words(text)], source)
    pairs = [line.partition("=") for option in ("setenv", "set_env") for line in lines(option)]
    names_in = {
        option: tuple(name for line in lines(option) for name in line.replace(",", " ").split())
        for option in ("extras", "dependency_groups")
    }
    return wish | Wish(
        extras=names_in["extras"],
        groups=names_in["dependency_groups"],
        variables=readable_variables({name.strip(): _unquoted(text) for name, equals, text in pairs if equals}),
        pythons=tuple(names),
    )


def _tox_toml(document: Table, source: str, python: PythonVersion | None) -> Wish:
    names = [name for entry in strings(document.get("env_list")) for name in _tox_names(entry)]
    chosen = _tox_choice(names, python)
    own = {**table(document.get("env_run_base")), **table(table(document.get("env")).get(chosen))}
    commands = [
        [_tox_value(word, {}) for item in items(command) for word in _tox_words(item) if word]
        for option in ("commands_pre", "commands")
        for command in items(own.get(option))
    ]
    deps = [words for line in strings(own.get("deps")) for words in script_words(f"pip install {line}")]
    wish = read_commands([*deps, *commands], source)
    variables = {name: _tox_value(string(value), {}) for name, value in table(own.get("set_env")).items() if value}
    return wish | Wish(
        extras=tuple(strings(own.get("extras"))),
        groups=tuple(strings(own.get("dependency_groups"))),
        variables=readable_variables(variables),
        pythons=tuple(names),
    )


def _tox_words(item: object) -> list[str]:
    replaced = table(item)
    return strings(replaced.get("default")) if string(replaced.get("replace")) == "posargs" else [string(item)]


def _tox_names(text: str) -> list[str]:
    """The environments of an envlist, `py{38,39}-django{3,4}` and ranges written out."""
    found: list[str] = []
    for entry in re.split(r"[\n,]+(?![^{]*\})", text):
        pending = [entry.strip().partition("#")[0].strip()]
        while pending and len(found) < _MAX_EXPANSIONS:
            name = pending.pop(0)
            brace = re.search(r"\{([^{}]*)\}", name)
            if brace is None:
                found += [name] if name else []
                continue
            span = re.fullmatch(r"\s*(\d+)-(\d+)\s*", brace[1])
            options = list(map(str, range(int(span[1]), int(span[2]) + 1)))[:50] if span else brace[1].split(",")
            pending = [name[: brace.start()] + option.strip() + name[brace.end() :] for option in options] + pending
    return found


def _tox_choice(names: Sequence[str], python: PythonVersion | None) -> str:
    """The environment that tests with a Python version, of several the last plain one; empty for the general one."""
    if python is None:
        return ""
    wanted_names = (f"py{python[0]}{python[1]}", f"py{python[0]}.{python[1]}", f"{python[0]}.{python[1]}")
    fitting = [name for name in names if name.split("-")[0] in wanted_names]
    others = [name for name in names if re.match(r"py(?:thon)?3?(?:-|$)|tests?(?:-|$)|unit", name)]
    candidates = [
        name for name in (fitting or others) if not re.search(r"main|master|dev|cov|lint|doc|pre|mypy|typing", name)
    ]
    tests = [name for name in candidates if re.search(r"-(?:unit|tests?)(?:-|$)", name)] or candidates
    # With as few factors as possible: each one is a special case.
    fewest = min((name.count("-") for name in tests), default=0)
    return next((name for name in reversed(tests) if name.count("-") == fewest), wanted_names[0])


def _for_factors(line: str, factors: frozenset[str], names: Sequence[str]) -> str:
    """A line without its condition on factors, empty where that does not hold."""
    match = re.match(r"((?:!?[\w.]+(?:-!?[\w.]+)*)(?:,\s*!?[\w.-]+)*)\s*:\s+(.*)", line) if line else None
    braced = re.match(r"([\w.!-]*\{[^}]*\}[\w.-]*)\s*:\s*(.*)", line) if line else None
    found = braced or match
    if found is None or "://" in found[0][: len(found[1]) + 4]:
        return line
    known = {factor for name in names for factor in name.split("-")} | factors
    conditions = _tox_names(found[1])
    parts = {part.lstrip("!") for condition in conditions for part in condition.split("-")}
    if not braced and not parts & known and not any(part.startswith("py") for part in parts):
        return line if " " in found[1] else ""
    holds = any(
        all((part[1:] not in factors) if part.startswith("!") else part in factors for part in condition.split("-"))
        for condition in conditions
    )
    return found[2] if holds else ""


def _tox_value(text: str, sections: Mapping[str, Mapping[str, str]]) -> str:
    """A value with its substitutions replaced as far as that is possible without running anything."""
    for _ in range(8):
        replaced = _SUBSTITUTION.sub(lambda match: _substituted(match, sections), text)
        if replaced == text:
            break
        text = replaced
    return text


def _substituted(match: re.Match[str], sections: Mapping[str, Mapping[str, str]]) -> str:
    name, rest = match["name"].strip(), match["rest"]
    if section := re.fullmatch(r"\[([^\]]+)\](.+)", name):
        return sections.get(section[1], {}).get(section[2].strip(), "")
    match name:
        case "posargs":
            return rest or ""
        case "toxinidir" | "tox_root" | "package_root" | "envsitepackagesdir" | "env_site_packages_dir":
            # What is installed is installed in place.
            return "."
        case "/" | "pathsep" | "":
            return ":" if name == "pathsep" or rest is not None else "/"
        case "envpython":
            return "python3"
        case "tty":
            return ""
        case "env":
            return (rest or "").partition(":")[2]
        case _:
            # Kept as a mark that this cannot be known here.
            return f"${name or 'x'}"


def _unquoted(text: str) -> str:
    return text.strip().strip("\"'")


# -- nox ---------------------------------------------------------------------------------------------------------------


def _nox(text: str, source: str) -> Wish:
    """The sessions of a noxfile that run tests: what they install and run with literal arguments."""
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Wish()
    constants = {
        target.id: statement.value
        for statement in module.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    sessions = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.decorator_list]
    named = [node for node in sessions if _TEST_NAME.fullmatch(node.name)] or [
        node for node in sessions if "test" in node.name and wanted(node.name)
    ]
    for session in named:
        wish = Wish(source=source, pythons=tuple(_nox_pythons(session, constants)))
        for node in ast.walk(session):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                words = [word for part in node.args for word in _words(part, constants)]
                command = {"install": ["pip", "install", *words], "run": words, "run_install": words}.get(
                    node.func.attr
                )
                if command:
                    wish |= read_commands([command], source) | Wish(variables=_nox_variables(node))
        if wish.tests:
            return wish
    return Wish(source=source, pythons=tuple(p for node in named for p in _nox_pythons(node, constants)))


def _nox_pythons(session: ast.FunctionDef, constants: Mapping[str, ast.expr]) -> Iterator[str]:
    for decorator in session.decorator_list:
        for keyword in decorator.keywords if isinstance(decorator, ast.Call) else ():
            if keyword.arg == "python":
                yield from _words(keyword.value, constants)


def _nox_variables(call: ast.Call) -> dict[str, str]:
    value = next((keyword.value for keyword in call.keywords if keyword.arg == "env"), None)
    if not isinstance(value, ast.Dict):
        return {}
    pairs = {
        key.value: part.value
        for key, part in zip(value.keys, value.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(part, ast.Constant)
    }
    return readable_variables(
        {name: text for name, text in pairs.items() if isinstance(name, str) and isinstance(text, str)}
    )


def _words(node: ast.expr, constants: Mapping[str, ast.expr], depth: int = 0) -> list[str]:
    """The words of an argument; what only running the file would tell is left out, the top directory is `.`."""
    if depth > 8:
        return []
    match node:
        case ast.Constant(value=str() as text):
            return [text]
        case ast.Starred(value=inner):
            return _words(inner, constants, depth + 1)
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return [word for part in parts for word in _words(part, constants, depth + 1)]
        case ast.Name(id=name) if name in constants:
            return _words(constants[name], constants, depth + 1)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [*_words(left, constants, depth + 1), *_words(right, constants, depth + 1)]
        case ast.BinOp(op=ast.Div(), right=right):
            return [f"./{word}" for word in _words(right, constants, depth + 1)]
        case ast.BoolOp(op=ast.Or(), values=[*_, default]):
            # `session.posargs or ["tests"]`
            return _words(default, constants, depth + 1)
        case _:
            return []


# -- Hatch and task runners --------------------------------------------------------------------------------------------


def _hatch(files: RepositoryFiles, directory: str) -> Wish:
    inner = table(table(table(files.toml(joined(directory, "pyproject.toml")).get("tool")).get("hatch")).get("envs"))
    outer = table(files.toml(joined(directory, "hatch.toml")).get("envs"))
    source = joined(directory, "hatch.toml" if outer else "pyproject.toml")
    environments = {**inner, **outer}
    ranked = sorted(environments, key=lambda name: (not wanted(name.removeprefix("hatch-")), name != "default"))
    for name in ranked:
        environment = table(environments[name])
        if name != "default" and not wanted(name.removeprefix("hatch-")):
            continue
        scripts = table(environment.get("scripts"))
        found = Wish(
            source=source,
            extras=tuple(strings(environment.get("features"))),
            groups=(f"test-{name}", *strings(environment.get("dependency-groups"))),
        )
        for script in sorted(scripts, key=lambda script: (not _TEST_NAME.fullmatch(script), script)):
            commands = [re.sub(r"\{args:?([^{}]*)\}", r"\1", line) for line in strings(scripts[script])]
            wish = read_commands([words for line in commands for words in script_words(line)], source)
            if wish.tests:
                found |= wish
                break
        if found.tests or name == "hatch-test":
            return found
    return Wish()


def _task_runners(pyproject: Table, source: str) -> Wish:
    """The `test` task of PDM, Poe the Poet, taskipy, Rye and uv-like script tables."""
    tool = table(pyproject.get("tool"))
    tables = (
        table(table(tool.get("pdm")).get("scripts")),
        table(table(tool.get("poe")).get("tasks")),
        table(table(tool.get("taskipy")).get("tasks")),
        table(table(tool.get("rye")).get("scripts")),
    )
    for tasks in tables:
        for name in sorted(tasks, key=lambda name: (not _TEST_NAME.fullmatch(name), name)):
            if not _TEST_NAME.fullmatch(name):
                continue
            task = table(tasks[name])
            text = string(tasks[name]) or next(
                (string(task.get(key)) for key in ("cmd", "shell", "script") if key in task), ""
            )
            wish = read_commands(list(script_words(text)), source)
            if wish.tests:
                return wish
    return Wish()


# -- Makefiles ---------------------------------------------------------------------------------------------------------


def _makefile(files: RepositoryFiles, directory: str) -> Wish:
    path = next(iter(files.named(directory, "GNUmakefile", "makefile", "Makefile")), "")
    text = files.text(path).replace("\\\n", " ")
    variables = {name: value.strip() for name, value in re.findall(r"^(\w+)\s*[:?]?=\s*(.*)$", text, re.M)}
    recipes: dict[str, list[str]] = {}
    target: list[str] = []
    for line in text.splitlines():
        if line.startswith("\t") and target:
            for name in target:
                recipes.setdefault(name, []).append(line[1:])
        elif rule := re.match(r"([\w./ -]+)\s*::?(?!=)", line):
            target = rule[1].split()
        elif line.strip() and not line.startswith("#"):
            target = []

    def wish(name: str) -> Wish:
        lines = [_expanded(line, variables) for line in recipes.get(name, [])]
        return read_commands([words for line in lines for words in script_words(line)], path)

    tests = next((found for name in _MAKE_TEST if (found := wish(name)).tests), Wish(source=path))
    for name in _MAKE_INSTALL:
        tests |= wish(name)
    return tests


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    for _ in range(5):
        text = re.sub(r"\$[({](\w+)[)}]", lambda match: variables.get(match[1], f"${match[1]}"), text)
    # Conditions and other functions of make: what they would give is not known.
    return re.sub(r"\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)", "", text)


# -- workflows ---------------------------------------------------------------------------------------------------------


def workflow_jobs(files: RepositoryFiles) -> Iterator[tuple[str, list[list[str]]]]:
    """The commands of each job of each workflow file, with its path; those that are likely to test come first."""
    for path in _workflow_files(files):
        for _, job in _jobs(files.yaml(path)):
            yield path, _job_commands(job)


def _workflow_files(files: RepositoryFiles) -> list[str]:
    names = [path for path in files.texts if path.startswith(".github/workflows/")]
    ranked = sorted(names, key=lambda path: (not _WORKFLOW_NAMES.search(posixpath.basename(path)), path))
    return [
        path
        for path in ranked
        if not _WORKFLOW_OTHERS.search(posixpath.basename(path)) or re.search(r"test|ci", posixpath.basename(path))
    ]


def _jobs(workflow: Table) -> Iterator[tuple[str, Table]]:
    for name, job in table(workflow.get("jobs")).items():
        if not _WORKFLOW_OTHERS.search(name) or "test" in name:
            yield name, table(job)


def _job_commands(job: Table) -> list[list[str]]:
    commands: list[list[str]] = []
    for step in items(job.get("steps"))[:_MAX_STEPS]:
        if string(table(step).get("working-directory")) in ("", "."):
            commands += script_words(string(table(step).get("run")))
    return commands


def _workflows(files: RepositoryFiles) -> Iterator[Wish]:
    for path in _workflow_files(files):
        wish = _workflow(files.text(path), path)
        if wish.tests or wish.pythons:
            yield wish
    for path in (".gitlab-ci.yml", ".travis.yml"):
        if files.text(path):
            yield _other_pipeline(parsed_yaml(files.text(path)), path)


def _workflow(text: str, path: str) -> Wish:
    found = Wish(source=path)
    pythons: list[str] = []
    for _, job in _jobs(parsed_yaml(text)):
        matrix = table(table(job.get("strategy")).get("matrix"))
        versions = [
            str(version) for key in ("python-version", "python", "python_version") for version in items(matrix.get(key))
        ]
        versions += [
            str(table(entry).get(key))
            for entry in items(matrix.get("include"))
            for key in ("python-version", "python", "python_version")
            if table(entry).get(key)
        ]
        wish = read_commands(_job_commands(job), path)
        # What a job installs that tests nothing is for something else.
        found |= wish if wish.tests else Wish(source=path)
        pythons += versions
    return found | Wish(pythons=tuple(pythons))


def _other_pipeline(document: Table, path: str) -> Wish:
    scripts: list[str] = []
    for value in (document, *(table(part) for part in document.values())):
        for key in ("install", "before_script", "script"):
            scripts += strings(value.get(key))
    wish = read_commands([words for script in scripts for words in script_words(script)], path)
    return wish | Wish(pythons=tuple(str(version) for version in items(document.get("python"))))


def requirement_lines(wish: Wish) -> tuple[str, ...]:
    """The requirements among a wish's lines."""
    return requirements(wish.lines)

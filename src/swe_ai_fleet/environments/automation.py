"""Reads how a repository's automation runs its tests: tox, nox, Hatch, Makefiles, task runners, workflow files.

All of it is read as data; values that are only known by running it are left out.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence

from swe_ai_fleet.domain.json_values import items, mapping, string, strings
from swe_ai_fleet.environments.commands import Wish, read_commands, read_scripts, readable_variables, script_words
from swe_ai_fleet.environments.packaging_formats import literal_names, literal_value
from swe_ai_fleet.environments.python_project import is_for_tests
from swe_ai_fleet.environments.recipe import PythonVersion
from swe_ai_fleet.environments.repository_files import RepositoryFiles, Table, joined, parsed_python, parsed_yaml
from swe_ai_fleet.tools.tests.inventory import parsed_ini

_TEST_NAME = re.compile(
    r"(?:run[-_]?)?(?:unit[-_]?)?(?:tests?|pytest|unit|check|py3?|python)(?:[-_:]?(?:unit|py\w*|all|suite))?", re.I
)
_MAKE_INSTALL = (
    *("install", "install-dev", "dev", "develop", "setup", "init", "deps", "sync", "requirements", ".install-deps"),
)
_MAKE_TEST = ("test", "tests", "unittest", "unit-test", "pytest", "check")
_WORKFLOW_NAMES = re.compile(r"test|ci|build|main|python|check", re.I)
_WORKFLOW_OTHERS = re.compile(r"docs?|release|publish|lint|deploy|codeql|stale|labell?|benchmark", re.I)
_MAX_JOB_STEPS = 2000
_MAX_RECIPE_CHARS = 4_000


def read_automation(files: RepositoryFiles, directory: str, python: PythonVersion | None = None) -> tuple[Wish, ...]:
    """What each automation file installs and runs, the most reliable first; of tox, the environment of a Python."""
    wishes = [
        read_tox(files, directory, python),
        _nox(files.text(joined(directory, "noxfile.py")), joined(directory, "noxfile.py")),
        _hatch(files, directory),
        _task_runners(files.toml(joined(directory, "pyproject.toml")), joined(directory, "pyproject.toml")),
        _makefile(files, directory),
        *(_workflows(files) if not directory else ()),
    ]
    return tuple(wish for wish in wishes if wish != Wish(source=wish.source))


_SUBSTITUTION = re.compile(r"\{(?P<name>[^{}:]*)(?::(?P<rest>[^{}]*))?\}")
_MAX_EXPANSIONS = 200
_MAX_STEPS = 2_000
# A few lines that refer to each other, or a range, could expand to any size.
_MAX_EXPANDED_CHARS = 10_000


def read_tox(files: RepositoryFiles, directory: str, python: PythonVersion | None) -> Wish:
    """The installations and commands of the tox environment that tests with a Python."""
    pyproject = files.toml(joined(directory, "pyproject.toml"))
    own = mapping(pyproject, "tool", "tox")
    if text := string(own.get("legacy_tox_ini")):
        return _ini(text, joined(directory, "pyproject.toml"), python)
    for name in ("tox.ini", "setup.cfg"):
        text = files.text(joined(directory, name))
        if re.search(r"^\[(?:tox:)?tox\]|^\[testenv\]", text, re.M):
            return _ini(text, joined(directory, name), python)
    document = own or files.toml(joined(directory, "tox.toml"))
    return _toml(document, joined(directory, "pyproject.toml" if own else "tox.toml"), python) if document else Wish()


def _ini(text: str, source: str, python: PythonVersion | None) -> Wish:
    parser = parsed_ini(text)
    if parser is None:
        return Wish()
    sections = {name: dict(parser.items(name)) for name in parser.sections()}
    options = sections.get("tox", {}) | sections.get("tox:tox", {})
    names = _names(options.get("envlist", "") or options.get("env_list", ""))
    chosen = _choice(names, python)
    factors = frozenset(chosen.split("-"))
    # The section of the environment itself overrides the general one; its name may be that of several environments.
    own = next((name for name in sections if name.startswith("testenv:") and chosen in _names(name[8:])), "")
    merged = sections.get("testenv", {}) | sections.get(own, {})
    if not merged:
        return Wish(source=source, pythons=tuple(names))

    def value(option: str) -> str:
        return _value(merged.get(option, ""), sections)

    def lines(option: str) -> list[str]:
        text = value(option).replace("\\\n", " ")
        return [line for raw in text.splitlines() if (line := _for_factors(raw.strip(), factors, names))]

    commands = [*lines("commands_pre"), *lines("commands")]
    installs = [f"pip install {line}" for line in lines("deps")]
    wish = read_scripts([*installs, *commands], source)
    pairs = [line.partition("=") for option in ("setenv", "set_env") for line in lines(option)]
    variables = {name.strip(): text.strip().strip("\"'") for name, equals, text in pairs if equals}
    extras, groups = (
        [name for line in lines(option) for name in line.replace(",", " ").split()]
        for option in ("extras", "dependency_groups")
    )
    return wish | _tox_wish(extras, groups, variables, names)


def _tox_wish(extras: Sequence[str], groups: Sequence[str], variables: Mapping[str, str], names: Sequence[str]) -> Wish:
    readable = readable_variables(variables)
    return Wish(extras=tuple(extras), groups=tuple(groups), variables=readable, pythons=tuple(names))


def _toml(document: Table, source: str, python: PythonVersion | None) -> Wish:
    names = [name for entry in strings(document.get("env_list")) for name in _names(entry)]
    chosen = _choice(names, python)
    own = {**mapping(document, "env_run_base"), **mapping(document, "env", chosen)}
    commands = [
        [_value(word, {}) for item in items(command) for word in _argument(item) if word]
        for option in ("commands_pre", "commands")
        for command in items(own.get(option))
    ]
    deps = read_scripts([f"pip install {line}" for line in strings(own.get("deps"))], source)
    wish = deps | read_commands(commands, source)
    variables = {name: _value(string(value), {}) for name, value in mapping(own, "set_env").items() if value}
    return wish | _tox_wish(strings(own.get("extras")), strings(own.get("dependency_groups")), variables, names)


def _argument(item: object) -> list[str]:
    replaced = mapping(item)
    return strings(replaced.get("default")) if string(replaced.get("replace")) == "posargs" else [string(item)]


def _names(text: str) -> list[str]:
    """The environments of an envlist, with `py{38,39}-django{3,4}` and ranges expanded."""
    names: list[str] = []
    steps = 0
    for entry in re.split(r"[\n,]+(?![^{]*\})", text[:_MAX_EXPANDED_CHARS]):
        pending = [entry.strip().partition("#")[0].strip()]
        while pending and len(names) < _MAX_EXPANSIONS and steps < _MAX_STEPS:
            steps += 1
            name = pending.pop(0)
            brace = re.search(r"\{([^{}]*)\}", name)
            if brace is None:
                names += [name] if name else []
                continue
            span = re.fullmatch(r"\s*(\d{1,9})-(\d{1,9})\s*", brace[1])
            options = list(map(str, range(int(span[1]), int(span[2]) + 1)[:50])) if span else brace[1].split(",")
            pending = [name[: brace.start()] + option.strip() + name[brace.end() :] for option in options] + pending
    return names


def _choice(names: Sequence[str], python: PythonVersion | None) -> str:
    """The environment that tests with a Python version, of several the last with the fewest factors.

    Empty without a version: the general one.
    """
    if python is None:
        return ""
    wanted_names = (f"py{python[0]}{python[1]}", f"py{python[0]}.{python[1]}", f"{python[0]}.{python[1]}")
    fitting = [name for name in names if name.split("-")[0] in wanted_names]
    others = [name for name in names if re.match(r"py(?:thon)?3?(?:-|$)|tests?(?:-|$)|unit", name)]
    candidates = [
        name for name in (fitting or others) if not re.search(r"main|master|dev|cov|lint|doc|pre|mypy|typing", name)
    ]
    tests = [name for name in candidates if re.search(r"-(?:unit|tests?)(?:-|$)", name)] or candidates
    # Each further factor is a special case.
    fewest = min((name.count("-") for name in tests), default=0)
    return next((name for name in reversed(tests) if name.count("-") == fewest), wanted_names[0])


def _for_factors(line: str, factors: frozenset[str], names: Sequence[str]) -> str:
    """A line without its condition on factors; empty if that does not hold."""
    match = re.match(r"((?:!?[\w.]+(?:-!?[\w.]+)*)(?:,\s*!?[\w.-]+)*)\s*:\s+(.*)", line) if line else None
    braced = re.match(r"([\w.!-]*\{[^}]*\}[\w.-]*)\s*:\s*(.*)", line) if line else None
    conditional = braced or match
    if conditional is None or "://" in conditional[0][: len(conditional[1]) + 4]:
        return line
    declared = {factor for name in names for factor in name.split("-")} | factors
    conditions = _names(conditional[1])
    parts = {part.lstrip("!") for condition in conditions for part in condition.split("-")}
    if not braced and not parts & declared and not any(part.startswith("py") for part in parts):
        return line if " " in conditional[1] else ""
    holds = any(
        all((part[1:] not in factors) if part.startswith("!") else part in factors for part in condition.split("-"))
        for condition in conditions
    )
    return conditional[2] if holds else ""


def _value(text: str, sections: Mapping[str, Mapping[str, str]]) -> str:
    """A value with its substitutions replaced, as far as they are known without running anything."""
    for _ in range(8):
        replaced = _SUBSTITUTION.sub(lambda match: _substituted(match, sections), text, count=_MAX_EXPANSIONS)
        replaced = replaced[:_MAX_EXPANDED_CHARS]
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
            # Packages are installed in place.
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
            # A marker of an unknown value.
            return f"${name or 'x'}"


def _nox(text: str, source: str) -> Wish:
    """The first session of a noxfile that runs tests: its installations and commands with literal arguments."""
    if (module := parsed_python(text)) is None:
        return Wish()
    constants = literal_names(module)
    sessions = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.decorator_list]
    named = [node for node in sessions if _TEST_NAME.fullmatch(node.name)] or [
        node for node in sessions if "test" in node.name and is_for_tests(node.name)
    ]
    for session in named:
        wish = Wish(source=source, pythons=tuple(_nox_pythons(session, constants)))
        for node in ast.walk(session):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                words = strings(literal_value(ast.List(elts=node.args), constants))
                commands = {"install": ["pip", "install", *words], "run": words, "run_install": words}
                if command := commands.get(node.func.attr):
                    values = mapping(_keyword(node, "env", constants))
                    texts = {name: text for name, text in values.items() if isinstance(text, str)}
                    wish |= read_commands([command], source) | Wish(variables=readable_variables(texts))
        if wish.tests:
            return wish
    return Wish(source=source, pythons=tuple(p for node in named for p in _nox_pythons(node, constants)))


def _nox_pythons(session: ast.FunctionDef, constants: Mapping[str, object]) -> list[str]:
    return [text for each in session.decorator_list for text in strings(_keyword(each, "python", constants))]


def _keyword(call: ast.expr, name: str, constants: Mapping[str, object]) -> object:
    keywords = call.keywords if isinstance(call, ast.Call) else ()
    return next((literal_value(keyword.value, constants) for keyword in keywords if keyword.arg == name), None)


def _hatch(files: RepositoryFiles, directory: str) -> Wish:
    inner = mapping(mapping(files.toml(joined(directory, "pyproject.toml")), "tool", "hatch").get("envs"))
    outer = mapping(files.toml(joined(directory, "hatch.toml")), "envs")
    source = joined(directory, "hatch.toml" if outer else "pyproject.toml")
    environments = {**inner, **outer}
    ranked = sorted(environments, key=lambda name: (not is_for_tests(name.removeprefix("hatch-")), name != "default"))
    for name in ranked:
        environment = mapping(environments[name])
        if name != "default" and not is_for_tests(name.removeprefix("hatch-")):
            continue
        scripts = mapping(environment, "scripts")
        total = Wish(
            source=source,
            extras=tuple(strings(environment.get("features"))),
            groups=(f"test-{name}", *strings(environment.get("dependency-groups"))),
        )
        for script in sorted(scripts, key=lambda script: (not _TEST_NAME.fullmatch(script), script)):
            commands = [re.sub(r"\{args:?([^{}]*)\}", r"\1", line) for line in strings(scripts[script])]
            wish = read_scripts(commands, source)
            if wish.tests:
                total |= wish
                break
        if total.tests or name == "hatch-test":
            return total
    return Wish()


def _task_runners(pyproject: Table, source: str) -> Wish:
    """The `test` task in the script tables of PDM, Poe the Poet, taskipy and Rye."""
    tool = mapping(pyproject, "tool")
    for table in (("pdm", "scripts"), ("poe", "tasks"), ("taskipy", "tasks"), ("rye", "scripts")):
        tasks = mapping(tool, *table)
        for name in sorted(filter(_TEST_NAME.fullmatch, tasks)):
            task = mapping(tasks[name])
            texts = (string(tasks[name]), *(string(task.get(key)) for key in ("cmd", "shell", "script")))
            wish = read_scripts([*filter(None, texts)][:1], source)
            if wish.tests:
                return wish
    return Wish()


def _makefile(files: RepositoryFiles, directory: str) -> Wish:
    path = next(iter(files.existing(directory, "GNUmakefile", "makefile", "Makefile")), "")
    text = files.text(path).replace("\\\n", " ")
    variables = {name: value.strip() for name, value in re.findall(r"^(\w+)\s*[:?]?=\s*(.*)$", text, re.M)}
    recipes: dict[str, list[str]] = {}
    target: list[str] = []
    for line in text.splitlines():
        if line.startswith("\t") and target:
            for name in target:
                recipes.setdefault(name, []).append(line[1:])
        elif rule := re.match(r"([\w./ -]+)\t*::?(?!=)", line):
            target = rule[1].split()
        elif line.strip() and not line.startswith("#"):
            target = []

    def wish(name: str) -> Wish:
        return read_scripts([_expanded(line, variables) for line in recipes.get(name, [])], path)

    tests = next((test for name in _MAKE_TEST if (test := wish(name)).tests), Wish(source=path))
    for name in _MAKE_INSTALL:
        tests |= wish(name)
    return tests


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    """A line of a recipe with its variables expanded, up to a length: a variable may refer to itself."""
    for _ in range(5):
        text = text[:_MAX_RECIPE_CHARS]
        text = re.sub(
            r"\$[({](\w+)[)}]", lambda match: variables.get(match[1], f"${match[1]}")[:_MAX_RECIPE_CHARS], text
        )
    # Conditions and other functions of make: their values are unknown.
    return re.sub(r"\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)", "", text)


def workflow_jobs(files: RepositoryFiles) -> Iterator[tuple[str, list[list[str]]]]:
    """The commands of each job of each workflow file, with its path; likely test workflows come first."""
    for path in _workflow_files(files):
        for job in _jobs(files.yaml(path)):
            yield path, _job_commands(job)


def _workflow_files(files: RepositoryFiles) -> list[str]:
    names = [path for path in files.texts if path.startswith(".github/workflows/")]
    ranked = sorted(names, key=lambda path: (not _WORKFLOW_NAMES.search(posixpath.basename(path)), path))
    return [
        path
        for path in ranked
        if not _WORKFLOW_OTHERS.search(posixpath.basename(path)) or re.search(r"test|ci", posixpath.basename(path))
    ]


def _jobs(workflow: Table) -> Iterator[Table]:
    for name, job in mapping(workflow, "jobs").items():
        if not _WORKFLOW_OTHERS.search(name) or "test" in name:
            yield mapping(job)


def _job_commands(job: Table) -> list[list[str]]:
    commands: list[list[str]] = []
    for step in items(job.get("steps"))[:_MAX_JOB_STEPS]:
        if string(mapping(step).get("working-directory")) in ("", "."):
            commands += script_words(string(mapping(step).get("run")))
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
    total = Wish(source=path)
    pythons: list[str] = []
    for job in _jobs(parsed_yaml(text)):
        matrix = mapping(job, "strategy", "matrix")
        keys = ("python-version", "python", "python_version")
        versions = [str(version) for key in keys for version in items(matrix.get(key))]
        entries = map(mapping, items(matrix.get("include")))
        versions += [str(entry[key]) for entry in entries for key in keys if entry.get(key)]
        wish = read_commands(_job_commands(job), path)
        # A job without tests installs packages for another purpose.
        total |= wish if wish.tests else Wish(source=path)
        pythons += versions
    return total | Wish(pythons=tuple(pythons))


def _other_pipeline(document: Table, path: str) -> Wish:
    scripts: list[str] = []
    for value in (document, *(mapping(part) for part in document.values())):
        for key in ("install", "before_script", "script"):
            scripts += strings(value.get(key))
    wish = read_scripts(scripts, path)
    return wish | Wish(pythons=tuple(str(version) for version in items(document.get("python"))))

"""What a repository's automation says about its tests: tox, nox, Hatch, Makefiles, task runners, workflow files.

All of it is read as data; values that only running it would reveal are left out.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator, Mapping

from swe_ai_fleet.domain.json_values import items, mapping, string, strings
from swe_ai_fleet.environments.commands import Wish, read_commands, readable_variables, script_words
from swe_ai_fleet.environments.python_project import is_for_tests
from swe_ai_fleet.environments.recipe import PythonVersion
from swe_ai_fleet.environments.repository_files import RepositoryFiles, Table, joined, parsed_python, parsed_yaml
from swe_ai_fleet.environments.tox import read_tox

_TEST_NAME = re.compile(
    r"(?:run[-_]?)?(?:unit[-_]?)?(?:tests?|pytest|unit|check|py3?|python)(?:[-_:]?(?:unit|py\w*|all|suite))?", re.I
)
_MAKE_INSTALL = (
    *("install", "install-dev", "dev", "develop", "setup", "init", "deps", "sync", "requirements", ".install-deps"),
)
_MAKE_TEST = ("test", "tests", "unittest", "unit-test", "pytest", "check")
_WORKFLOW_NAMES = re.compile(r"test|ci|build|main|python|check", re.I)
_WORKFLOW_OTHERS = re.compile(r"docs?|release|publish|lint|deploy|codeql|stale|labell?|benchmark", re.I)
_MAX_STEPS = 2000
_MAX_EXPANDED_CHARS = 4_000


def read_automation(files: RepositoryFiles, directory: str, python: PythonVersion | None = None) -> tuple[Wish, ...]:
    """The wishes of each piece of automation, the most reliable first; for tox, of the environment of a Python."""
    wishes = [
        read_tox(files, directory, python),
        _nox(files.text(joined(directory, "noxfile.py")), joined(directory, "noxfile.py")),
        _hatch(files, directory),
        _task_runners(files.toml(joined(directory, "pyproject.toml")), joined(directory, "pyproject.toml")),
        _makefile(files, directory),
        *(_workflows(files) if not directory else ()),
    ]
    return tuple(wish for wish in wishes if wish != Wish(source=wish.source))


# -- nox ---------------------------------------------------------------------------------------------------------------


def _nox(text: str, source: str) -> Wish:
    """The sessions of a noxfile that run tests: what they install and run with literal arguments."""
    if (module := parsed_python(text)) is None:
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
        node for node in sessions if "test" in node.name and is_for_tests(node.name)
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
    """The words of an argument, without values that only running the file would reveal; the top directory is `.`."""
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
            wish = read_commands([words for line in commands for words in script_words(line)], source)
            if wish.tests:
                total |= wish
                break
        if total.tests or name == "hatch-test":
            return total
    return Wish()


def _task_runners(pyproject: Table, source: str) -> Wish:
    """The `test` task of PDM, Poe the Poet, taskipy, Rye and uv-like script tables."""
    tool = mapping(pyproject, "tool")
    tables = (
        mapping(tool, "pdm", "scripts"),
        mapping(tool, "poe", "tasks"),
        mapping(tool, "taskipy", "tasks"),
        mapping(tool, "rye", "scripts"),
    )
    for tasks in tables:
        for name in sorted(tasks, key=lambda name: (not _TEST_NAME.fullmatch(name), name)):
            if not _TEST_NAME.fullmatch(name):
                continue
            task = mapping(tasks[name])
            text = string(tasks[name]) or next(
                (string(task.get(key)) for key in ("cmd", "shell", "script") if key in task), ""
            )
            wish = read_commands(list(script_words(text)), source)
            if wish.tests:
                return wish
    return Wish()


# -- Makefiles ---------------------------------------------------------------------------------------------------------


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
        lines = [_expanded(line, variables) for line in recipes.get(name, [])]
        return read_commands([words for line in lines for words in script_words(line)], path)

    tests = next((wish_found for name in _MAKE_TEST if (wish_found := wish(name)).tests), Wish(source=path))
    for name in _MAKE_INSTALL:
        tests |= wish(name)
    return tests


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    """A line of a recipe with its variables expanded, up to a length: a recursive variable has no end."""
    for _ in range(5):
        text = text[:_MAX_EXPANDED_CHARS]
        text = re.sub(
            r"\$[({](\w+)[)}]", lambda match: variables.get(match[1], f"${match[1]}")[:_MAX_EXPANDED_CHARS], text
        )
    # Conditions and other functions of make: their values are unknown.
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
    for name, job in mapping(workflow, "jobs").items():
        if not _WORKFLOW_OTHERS.search(name) or "test" in name:
            yield name, mapping(job)


def _job_commands(job: Table) -> list[list[str]]:
    commands: list[list[str]] = []
    for step in items(job.get("steps"))[:_MAX_STEPS]:
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
    for _, job in _jobs(parsed_yaml(text)):
        matrix = mapping(job, "strategy", "matrix")
        versions = [
            str(version) for key in ("python-version", "python", "python_version") for version in items(matrix.get(key))
        ]
        versions += [
            str(mapping(entry).get(key))
            for entry in items(matrix.get("include"))
            for key in ("python-version", "python", "python_version")
            if mapping(entry).get(key)
        ]
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
    wish = read_commands([words for script in scripts for words in script_words(script)], path)
    return wish | Wish(pythons=tuple(str(version) for version in items(document.get("python"))))

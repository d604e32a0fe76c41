"""tox.ini, tox.toml and their sections elsewhere, read as data; values that only tox could reveal are left out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from swe_ai_fleet.domain.json_values import items, mapping, string, strings
from swe_ai_fleet.environments.commands import Wish, read_commands, readable_variables, script_words
from swe_ai_fleet.environments.recipe import PythonVersion
from swe_ai_fleet.environments.repository_files import RepositoryFiles, Table, joined
from swe_ai_fleet.tools.tests.inventory import parsed_ini

_SUBSTITUTION = re.compile(r"\{(?P<name>[^{}:]*)(?::(?P<rest>[^{}]*))?\}")
_MAX_EXPANSIONS = 200
_MAX_STEPS = 2_000
# A few lines that name each other, or a range, can stand for any amount of memory.
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
    # The section of the environment itself goes before the general one; its name may stand for several.
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


def _toml(document: Table, source: str, python: PythonVersion | None) -> Wish:
    names = [name for entry in strings(document.get("env_list")) for name in _names(entry)]
    chosen = _choice(names, python)
    own = {**mapping(document, "env_run_base"), **mapping(document, "env", chosen)}
    commands = [
        [_value(word, {}) for item in items(command) for word in _words(item) if word]
        for option in ("commands_pre", "commands")
        for command in items(own.get(option))
    ]
    deps = [words for line in strings(own.get("deps")) for words in script_words(f"pip install {line}")]
    wish = read_commands([*deps, *commands], source)
    variables = {name: _value(string(value), {}) for name, value in mapping(own, "set_env").items() if value}
    return wish | Wish(
        extras=tuple(strings(own.get("extras"))),
        groups=tuple(strings(own.get("dependency_groups"))),
        variables=readable_variables(variables),
        pythons=tuple(names),
    )


def _words(item: object) -> list[str]:
    replaced = mapping(item)
    return strings(replaced.get("default")) if string(replaced.get("replace")) == "posargs" else [string(item)]


def _names(text: str) -> list[str]:
    """The environments of an envlist, `py{38,39}-django{3,4}` and ranges written out."""
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
    """A value with its substitutions replaced as far as that is possible without running anything."""
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
            # Kept as a mark of an unknown value.
            return f"${name or 'x'}"


def _unquoted(text: str) -> str:
    return text.strip().strip("\"'")

"""The choice of a Python for a repository, among those of a machine."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from packaging.specifiers import InvalidSpecifier, SpecifierSet

PythonVersion = tuple[int, int]

NO_PYTHON: PythonVersion = (0, 0)
"""The usual Python of a machine that has none."""
_CLASSIFIER = re.compile(r"Programming Language :: Python :: (\d)\.(\d{1,2})")
_TOX = re.compile(r"py(\d)\.?(\d{1,2})")
_DOTTED = re.compile(r"(\d)\.(\d{1,2})(?:\.\d+|-dev|t)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The toolchains of a machine: its usual Python, and all versions with their programs as commands find them.

    `pip_requires` is the Python that our own pip asks for; `programs` are toolchains, such as `npm` and `go`. One that
    is an `image` was made for what runs in it: the packages of its Python count.
    """

    default: PythonVersion
    pythons: Mapping[PythonVersion, str] = field(default_factory=dict[PythonVersion, str])
    pip_requires: str = ""
    programs: Collection[str] = ()
    image: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The version that was chosen, why, and the file that says so."""

    version: PythonVersion
    reason: str
    source: str = ""


def choose_python(
    machine: Machine, *, pinned: str = "", requires: tuple[str, str] = ("", ""), tested: Iterable[tuple[str, str]] = ()
) -> Choice:
    """The Python for a repository.

    Args:
        machine: The toolchains.
        pinned: The text of `.python-version`.
        requires: `requires-python` and the file that has it.
        tested: Versions that the repository names as those it is tested with, each with its file; in any of the forms
            `3.11`, `py311` and a trove classifier.
    """
    there = {machine.default, *machine.pythons}
    named = _version(pinned.strip())
    if named is not None and named in there:
        return Choice(version=named, reason=f"Python {version_text(named)} is named there", source=".python-version")
    lacking = f"; .python-version names {version_text(named)}, which this machine lacks" if named else ""
    fitting = {version for version in there if allows(requires[0], version)}
    sources = {version: source for text, source in tested if (version := _version(text)) is not None}

    def chosen(version: PythonVersion, reason: str, source: str = "") -> Choice:
        return Choice(
            version=version, reason=f"Python {version_text(version)}: {reason}{lacking}", source=source or requires[1]
        )

    if not fitting:
        return chosen(machine.default, f"nothing on this machine fits {requires[0]!r}, so its own is taken")
    if machine.default in fitting and (not sources or machine.default in sources):
        return chosen(machine.default, "this machine's own, which fits", sources.get(machine.default, ""))
    if both := fitting & sources.keys():
        return chosen(max(both), "the newest on this machine that it is tested with", sources[max(both)])
    if not sources:
        return chosen(max(fitting), "the newest on this machine that fits")
    newest = max(sources)
    later = {version for version in fitting if version > newest}
    if not later and machine.default in fitting:
        return chosen(
            machine.default, f"this machine's own; {version_text(newest)}, which it is tested with, is not here"
        )
    nearest = min(later) if later else max(fitting)
    return chosen(nearest, f"nearest to {version_text(newest)}, the newest that it is tested with", sources[newest])


def allows(specifier: str, version: PythonVersion) -> bool:
    """Whether some release of a Python version fits a specifier; a broken specifier fits everything."""
    try:
        wanted = SpecifierSet(specifier)
    except InvalidSpecifier:
        return True
    return any(
        wanted.contains(f"{version_text(version)}.{patch}", prereleases=True) for patch in (0, 1, 5, 10, 15, 20, 99)
    )


def version_text(version: PythonVersion) -> str:
    """A version as people write it."""
    return f"{version[0]}.{version[1]}"


def _version(text: str) -> PythonVersion | None:
    for pattern in (_DOTTED, _TOX, _CLASSIFIER):
        if match := pattern.fullmatch(text.strip().removeprefix("python").strip("-")):
            return int(match[1]), int(match[2])
    return None

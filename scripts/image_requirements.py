"""The part of requirements.lock that one image needs, hashes and all: `image_requirements.py --extras db,docker`.

The lock holds what development needs as well. It says of each package which other ones ask for it ("via …"), so what a
set of direct dependencies brings along can be read off it, without an index and without installing anything.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_OF_THE_PROJECT = re.compile(r"\(pyproject\.toml\)|\(pyproject\.toml:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """A package of the lock: its lines without comments, and the names of those that ask for it."""

    lines: tuple[str, ...]
    asked_by: frozenset[str]


def read_lock(text: str) -> dict[str, Locked]:
    """Every package of a lock file that `uv pip compile` wrote, by its normalised name."""
    packages: dict[str, Locked] = {}
    name, lines, asked_by = "", list[str](), set[str]()

    def close() -> None:
        if name:
            packages[name] = Locked(lines=tuple(lines), asked_by=frozenset(asked_by))

    for line in text.splitlines():
        if not line.strip():
            continue
        if line.lstrip().startswith("#"):
            said = line.strip().lstrip("#").strip().removeprefix("via").strip()
            if said and not _OF_THE_PROJECT.search(said) and (found := _NAME.match(said)):
                asked_by.add(normal(found[0]))
        elif line[0].isspace():
            lines.append(line)
        else:
            close()
            name, lines, asked_by = normal(line), [line], set[str]()
    close()
    return packages


def needed(lock: Mapping[str, Locked], direct: Iterable[str], without: Iterable[str] = ()) -> tuple[str, ...]:
    """The names in the lock that the direct ones bring along, themselves included, in order; never those left out.

    Raises KeyError for a name that the lock does not have.
    """
    left_out = {normal(name) for name in without}
    taken = {normal(name) for name in direct} - left_out
    for name in taken | left_out:
        if name not in lock:
            raise KeyError(name)
    while True:
        more = {name for name, one in lock.items() if one.asked_by & taken} - taken - left_out
        if not more:
            return tuple(sorted(taken))
        taken |= more


def direct_dependencies(project: Mapping[str, Any], extras: Iterable[str]) -> tuple[str, ...]:
    """The names that a pyproject asks for, with those of some of its extras. Raises KeyError for an unknown extra."""
    asked = list[str](project["project"]["dependencies"])
    for extra in extras:
        asked += project["project"]["optional-dependencies"][extra]
    return tuple(normal(one) for one in asked)


def normal(requirement: str) -> str:
    """A requirement's name as indexes spell it."""
    found = _NAME.match(requirement)
    if found is None:
        raise ValueError(f"no package name: {requirement!r}")
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extras", default="", help="extras of the project, comma-separated")
    parser.add_argument("--without", default="", help="packages that the image does not use, comma-separated")
    parser.add_argument("--build-system", action="store_true", help="what builds the wheel, instead")
    parser.add_argument("--also", default="", help="further packages of the lock")
    parser.add_argument("--directory", type=Path, default=Path(), help="where pyproject.toml and the lock are")
    chosen = parser.parse_args()
    project = tomllib.loads((chosen.directory / "pyproject.toml").read_text(encoding="utf-8"))
    lock = read_lock((chosen.directory / "requirements.lock").read_text(encoding="utf-8"))
    if chosen.build_system:
        direct = tuple(normal(one) for one in project["build-system"]["requires"])
    else:
        direct = direct_dependencies(project, _names(chosen.extras))
    try:
        names = needed(lock, (*direct, *_names(chosen.also)), _names(chosen.without))
    except KeyError as error:
        print(f"not in requirements.lock: {error.args[0]}", file=sys.stderr)
        return 1
    for name in names:
        print("\n".join(lock[name].lines))
    return 0


def _names(text: str) -> list[str]:
    return [one for one in re.split(r"[,\s]+", text) if one]


if __name__ == "__main__":
    sys.exit(main())

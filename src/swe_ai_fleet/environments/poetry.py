"""Poetry's and Pipenv's way of writing dependencies, as PEP 508 lines."""

from __future__ import annotations

import re

from packaging.version import InvalidVersion, Version

from swe_ai_fleet.environments.repository_files import string, strings, table

_PLAIN = re.compile(r"[\d.*]+(?:[a-z]+\d*)?")
_BARE = re.compile(r"\d[\w.]*")


def poetry_requirement(name: str, specification: object) -> str:
    """One dependency of a `pyproject.toml` of Poetry's or of a Pipfile as a PEP 508 line; empty for a path."""
    details = table(specification)
    text = specification if isinstance(specification, str) else string(details.get("version"))
    extras = ",".join(strings(details.get("extras")))
    line = f"{name}[{extras}]" if extras else name
    place = string(details.get("git"))
    if place:
        revision = next((string(details.get(key)) for key in ("rev", "tag", "branch", "ref") if details.get(key)), "")
        line += f" @ git+{place}{'@' + revision if revision else ''}"
    elif url := string(details.get("url")) or string(details.get("file")):
        line += f" @ {url}"
    elif details.get("path"):
        return ""
    else:
        line += version_specifier(text)
    markers = [string(details.get("markers"))]
    if python := string(details.get("python")):
        markers += [f"python_version {part}" for part in _python_parts(python)]
    marker = " and ".join(f"({part})" for part in markers if part)
    return f"{line} ; {marker}" if marker else line


def version_specifier(text: str) -> str:
    """A constraint of Poetry's as a PEP 440 specifier: `^1.2`, `~1.2`, `1.*`, `1.2`, comma-separated; else empty."""
    if "||" in text or "|" in text:
        return ""
    parts = [_part(part.strip()) for part in text.split(",")]
    return ",".join(part for part in parts if part)


def _part(text: str) -> str:
    if text in ("", "*"):
        return ""
    if text[0] in "^~" and text[:2] != "~=":
        return _range(text[1:].strip().lstrip("="), caret=text[0] == "^")
    if _PLAIN.fullmatch(text) and text[0].isdigit():
        return f"=={text}"
    return text.replace(" ", "")


def _range(text: str, *, caret: bool) -> str:
    try:
        numbers = list(Version(text).release)
    except InvalidVersion:
        return ""
    given = len(numbers)
    # Of a caret's numbers the first that is not zero may not change, of a tilde's the second.
    first = next((i for i, number in enumerate(numbers) if number), given - 1)
    index = first if caret else min(1, given - 1)
    upper = [*numbers[:index], numbers[index] + 1]
    return f">={text},<{'.'.join(map(str, upper))}"


def _python_parts(text: str) -> list[str]:
    parts: list[str] = []
    for piece in version_specifier(text).split(","):
        match = re.fullmatch(r"(>=|<=|==|!=|<|>|~=)\s*([\d.*]+)", piece)
        if match and _BARE.fullmatch(match[2]):
            parts.append(f'{match[1]} "{match[2].rstrip(".*")}"')
    return parts

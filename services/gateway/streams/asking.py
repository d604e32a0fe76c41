"""What is asked of the streams: parameters of a request, read and checked."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import HTTPConnection

from swe_ai_fleet.domain.errors import InvalidRequest

MAX_SEQUENCE = 2**63 - 1
_YES_NO = {"1": True, "true": True, "0": False, "false": False}


def check_names(connection: HTTPConnection, known: Sequence[str]) -> None:
    """Raises InvalidRequest naming a parameter that there is not, or that is given twice."""
    names = [name for name, _ in connection.query_params.multi_items()]
    for name in names:
        if name not in known:
            raise InvalidRequest(
                f"there is no parameter {name[:64]!r}", field=name[:64], hint=f"one of {', '.join(known)}"
            )
        if names.count(name) > 1:
            raise InvalidRequest(f"{name} is given twice", field=name)


def number(connection: HTTPConnection, name: str, default: int, *, least: int = 0, most: int = MAX_SEQUENCE) -> int:
    """A whole number of the query. Raises InvalidRequest."""
    text = connection.query_params.get(name)
    return default if text is None else number_of(text, name, least=least, most=most)


def number_of(text: str, name: str, *, least: int = 0, most: int = MAX_SEQUENCE) -> int:
    """The whole number that a text is. Raises InvalidRequest."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_SEQUENCE)) and least <= int(text) <= most):
        raise InvalidRequest(f"{name} is {text[:40]!r}", field=name, hint=f"a whole number from {least} to {most}")
    return int(text)


def flag(connection: HTTPConnection, name: str, default: bool = False) -> bool:
    """A yes or no of the query. Raises InvalidRequest."""
    text = connection.query_params.get(name)
    if text is None:
        return default
    if text not in _YES_NO:
        raise InvalidRequest(f"{name} is {text[:40]!r}", field=name, hint="1 or 0")
    return _YES_NO[text]

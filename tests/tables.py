"""Tables: many rows in one test, where each as a test of its own would take longer to begin than to run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


def table(names: str | Sequence[str], rows: Iterable[Any]) -> Callable[[Any], Any]:
    """As `pytest.mark.parametrize`, but one test, which ends at the first row that fails, and names it.

    What fixtures give is the same for all rows.
    """
    wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    whole = [(row, dict(zip(wanted, row if len(wanted) > 1 else (row,), strict=True))) for row in rows]
    assert whole

    def decorate(test: Any) -> Any:
        @functools.wraps(test)
        def each(*args: Any, **fixtures: Any) -> None:
            for row, given in whole:
                with _named(row):
                    test(*args, **fixtures, **given)

        @functools.wraps(test)
        async def each_async(*args: Any, **fixtures: Any) -> None:
            for row, given in whole:
                with _named(row):
                    await test(*args, **fixtures, **given)

        decorated: Any = each_async if inspect.iscoroutinefunction(test) else each
        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in wanted]
        decorated.__signature__ = signature.replace(parameters=left)
        return decorated

    return decorate


@contextmanager
def _named(row: object) -> Iterator[None]:
    try:
        yield
    except BaseException as fault:
        fault.add_note(f"in the row {str(row)[:500]!r}")
        raise

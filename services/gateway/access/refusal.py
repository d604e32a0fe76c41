"""What the gateway's door says to those it does not let in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.responses import Response

from services.gateway.problems import problem


@dataclass(kw_only=True, eq=False)
class Refused(Exception):
    """A request that is not passed on.

    Attributes:
        status: Of HTTP.
        code: The name of the gRPC code that is nearest.
        detail: What is wrong, in a sentence.
        field: The header or field that is wrong.
        hint: The way out.
        retry_after_seconds: When another try makes sense; None = not by waiting.
        headers: Further headers of the answer.
    """

    status: int
    code: str
    detail: str
    field: str = ""
    hint: str = ""
    retry_after_seconds: int | None = None
    headers: Mapping[str, str] | None = None

    def answer(self, path: str) -> Response:
        """The problem document."""
        return problem(
            self.status,
            self.detail,
            code=self.code,
            field=self.field,
            hint=self.hint,
            retry_after_seconds=self.retry_after_seconds,
            instance=path,
            headers=self.headers,
        )

"""What a command ends with: exit codes, and faults as one line and a hint."""

from __future__ import annotations

from enum import IntEnum

from swe_ai_fleet.domain.errors import (
    AlreadyExists,
    FleetError,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    ResourceExhausted,
    Unavailable,
)


class Exit(IntEnum):
    """Exit codes of `fleet`."""

    ACCEPTED = 0
    NOT_ACCEPTED = 1
    USAGE = 2
    UNAVAILABLE = 3
    STOPPED = 4
    REJECTED = 5
    UNVERIFIED = 6


class CommandFault(Exception):
    """A command cannot go on. The message is one line; `hint` says what to do about it.

    `field` is what is wrong, as the contract calls it or this program; `option` is what the caller wrote for it.
    """

    def __init__(self, message: str, *, exit_code: Exit, hint: str = "", field: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
        self.hint = hint
        self.field = field
        self.option = ""

    @property
    def line(self) -> str:
        """The whole of it in one line: `field: message (hint)`."""
        where = f"{self.field}: " if self.field else ""
        return f"{where}{self.message}" + (f" ({self.hint})" if self.hint else "")


def fault_of(error: FleetError, *, starting: bool = False) -> CommandFault:
    """A fault of our own parts as a command tells it. While a fleet is `starting`, what it needs is what is missing."""
    match error:
        case PreconditionFailed() if starting:
            code = Exit.UNAVAILABLE
        case InvalidRequest() | NotFound() | AlreadyExists() | PreconditionFailed():
            code = Exit.USAGE
        case Unavailable() | ResourceExhausted():
            code = Exit.UNAVAILABLE
        case _:
            code = Exit.NOT_ACCEPTED
    return CommandFault(error.message, exit_code=code, hint=error.hint, field=error.field)

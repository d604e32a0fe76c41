"""Faults that a caller or an operator can fix.

Expected outcomes are values (an observation, a stop reason, a check result); these exceptions are for the
rest. Each takes one positional message and keyword extras with defaults, so that it survives a process boundary.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import cast


class FleetError(Exception):
    """Base of every fault that the fleet raises itself."""

    def __init__(self, message: str, *, field: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class InvalidRequest(FleetError):
    """A request that can never succeed as it stands; `field` names what to change."""


class NotFound(FleetError):
    """The named task, execution, artifact or agent does not exist."""


class AlreadyExists(FleetError):
    """The id is already used for different content."""


class PermissionDenied(FleetError):
    """The caller is authenticated, but may not do this."""


class PreconditionFailed(FleetError):
    """Valid, but not in this state: uncommitted changes, a branch that is checked out, an execution that ended."""


class ResourceExhausted(FleetError):
    """A queue, a quota, a budget or the storage is full; try again later or with less."""


class Unavailable(FleetError):
    """A dependency (NATS, Ray, the model server, a git remote) does not answer; worth another try."""


class Fenced(FleetError):
    """Another writer has taken over this subject: stop at once, write nothing more."""


class AgentLost(FleetError):
    """The process that ran an agent died; its events are in the log, and another process can resume from there."""


class InternalFault(FleetError):
    """A bug of the fleet: a retry would fail as well. The operator's log has the details."""


class ModelError(FleetError):
    """The model server refused or failed a call."""


class ModelUnavailable(ModelError):
    """Connection, overload or a server fault: retried with jitter before it is raised."""


class ModelRejected(ModelError):
    """The server rejects this call (unknown model, bad key, bad request): a retry cannot help."""


class ContextTooLong(ModelError):
    """The prompt does not fit the model's context window."""


class PatchRejected(FleetError):
    """A patch does not apply to the commit it claims to be based on."""


def innermost(fault: BaseException) -> BaseException:
    """The first fault inside nested exception groups."""
    while isinstance(fault, BaseExceptionGroup):
        fault = cast("BaseExceptionGroup[BaseException]", fault).exceptions[0]
    return fault


@contextmanager
def fields_named(name: Callable[[str], str]) -> Generator[None]:
    """Inside, faults name fields as the caller knows them: `name` translates the part before an index."""
    try:
        yield
    except FleetError as error:
        head, bracket, index = error.field.partition("[")
        field = f"{name(head)}{bracket}{index}"
        if field == error.field:
            raise
        raise type(error)(error.message, field=field, hint=error.hint) from error

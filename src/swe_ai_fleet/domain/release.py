"""Which version of the fleet a process is of, and which versions may work together: decided here alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from importlib.metadata import version
from typing import Any, get_args, get_type_hints

from swe_ai_fleet.domain.assignment import ASSIGNMENT_TYPES, Job, JobOutcome
from swe_ai_fleet.domain.event import EventBody


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The version of a process; all empty: older than the handshake.

    Attributes:
        version: Of the code, such as `1.4.0`.
        wire: Digest of the types that orchestrators and agent hosts exchange: assignments, what they give, events.
    """

    version: str = ""
    wire: str = ""

    @classmethod
    def of(cls, text: str) -> Release:
        """The release that is written so."""
        version, _, wire = text.partition("+")
        return cls(version=version, wire=wire)

    def __str__(self) -> str:
        return f"{self.version}+{self.wire}" if self.version else ""

    def misfit(self, host: Release) -> str:
        """Why an agent host of that release may not work for an orchestrator of this one; empty: it may.

        Patch versions work together. Another wire format does not, not even one with optional fields more: an older
        host would leave out what it was asked for, and write of its run in another way than its driver reads.
        """
        if self.wire == host.wire and _minor(self) == _minor(host):
            return ""
        return f"the host is {str(host) or 'older'}, the orchestrator {self}"


def _minor(release: Release) -> list[str]:
    return release.version.split(".")[:2]


@cache
def this_release() -> Release:
    """What this process is of."""
    description = "\n".join(sorted(_described((*ASSIGNMENT_TYPES.values(), Job, JobOutcome, *get_args(EventBody)))))
    return Release(version=version("swe-ai-fleet"), wire=hashlib.sha256(description.encode()).hexdigest()[:12])


def misfit(job: Job) -> str:
    """Why this process may not run a job; empty: it may."""
    return Release.of(job.release).misfit(this_release()) if job.release else ""


def _described(types: Iterable[Any]) -> Iterator[str]:
    """A line for each dataclass and enumeration that these are made of, with its fields as the source has them."""
    # By identity, and kept: an alias that is collected would give its identity to the next one.
    seen, left = dict[int, Any](), list[Any](types)
    while left:
        kind = left.pop()
        if id(kind) in seen:
            continue
        seen[id(kind)] = kind
        if isinstance(kind, type) and is_dataclass(kind):
            yield f"{kind.__qualname__}: {', '.join(f'{item.name}: {item.type}' for item in fields(kind))}"
            left += [*get_type_hints(kind).values(), getattr(kind, "gives", None)]
        elif isinstance(kind, type) and issubclass(kind, Enum):
            yield f"{kind.__qualname__}: {', '.join(str(member.value) for member in kind)}"
        else:
            left += get_args(kind)

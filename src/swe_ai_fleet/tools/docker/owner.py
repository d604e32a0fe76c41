"""Whose a container or an image is, written on it as labels."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

LABEL_PREFIX = "swe-ai-fleet."


class Kind(StrEnum):
    """Containers inherit the labels of their image, whoever starts them: so each kind has labels of its own."""

    CONTAINER = "container"
    IMAGE = "image"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The run that containers and images are made for.

    Nothing of another owner can be seen through the tool. `workspace_id` is random where none is given, so that two
    tools in one process never share by accident.
    """

    tenant: str = ""
    execution_id: str = ""
    agent_id: str = ""
    workspace_id: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def key(self) -> str:
        """A short name for the four together; fit for names of images and containers."""
        parts = "\0".join((self.tenant, self.execution_id, self.agent_id, self.workspace_id))
        return hashlib.sha256(parts.encode("utf-8", "surrogatepass")).hexdigest()[:20]

    @property
    def namespace(self) -> str:
        """What the names of this owner's images and containers begin with."""
        return f"fleet-{self.key}"

    def selector(self, kind: Kind) -> str:
        """The label that this owner's things of a kind carry, and nobody else's."""
        return f"{LABEL_PREFIX}{kind}.owner={self.key}"

    def labels(self, kind: Kind) -> dict[str, str]:
        """Everything that is written on a new container or image."""
        prefix = f"{LABEL_PREFIX}{kind}."
        return {
            f"{prefix}owner": self.key,
            f"{prefix}tenant": self.tenant,
            f"{prefix}execution": self.execution_id,
            f"{prefix}agent": self.agent_id,
            f"{prefix}workspace": self.workspace_id,
            f"{prefix}created-at": datetime.now(UTC).isoformat(timespec="seconds"),
        }


def label(labels: Mapping[str, str] | None, kind: Kind, name: str) -> str:
    """One of the fleet's labels of a container or image; empty where it has none."""
    return (labels or {}).get(f"{LABEL_PREFIX}{kind}.{name}", "")

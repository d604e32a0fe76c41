"""A run kept in a file: one line of JSON for each change of a node, so that another process can go on from it."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.event import NodeUpdated
from swe_ai_fleet.domain.workflow import JsonValue, Workflow
from swe_ai_fleet.ports import SecretMask

VERSION = 1
MAX_BYTES = 256 * 1024 * 1024


class StateFile:
    """An open state file; `known` is what stood in it, `execution_id` that of its run."""

    def __init__(self, descriptor: int, execution_id: str, known: Mapping[str, NodeUpdated], mask: SecretMask) -> None:
        self.execution_id = execution_id
        self.known = known
        self._descriptor = descriptor
        self._mask = mask

    @classmethod
    @asynccontextmanager
    async def open(
        cls, path: Path, workflow: Workflow, inputs: Mapping[str, JsonValue], *, mask: SecretMask
    ) -> AsyncGenerator[StateFile]:
        """Open or begin the file of a run.

        What is in it outlives the process, not a loss of power: lines are not forced to the disk one by one.

        Args:
            path: Where it is; readable for its owner alone.
            workflow: What is run.
            inputs: Its inputs; only a digest of them is kept.
            mask: Hides secrets in what nodes are given. Outputs are kept as they are: the run goes on with them.

        Raises:
            PreconditionFailed: It holds another run, is no state file, is too large, or another process has it open.
        """
        digest = hashlib.sha256(to_json(workflow) + b"\0" + json.dumps(inputs, sort_keys=True).encode()).hexdigest()
        file = await asyncio.to_thread(_opened, path, digest, mask)
        try:
            yield file
        finally:
            os.close(file._descriptor)

    async def append(self, update: NodeUpdated) -> None:
        """Keep a change. Raises OSError."""
        await asyncio.to_thread(self._save, update)

    def _save(self, update: NodeUpdated) -> None:
        _write(self._descriptor, to_json(replace(update, inputs=self._mask(update.inputs))) + b"\n")


def _opened(path: Path, digest: str, mask: SecretMask) -> StateFile:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PreconditionFailed(
                f"another run is using {path}", field="state", hint="use another file for it"
            ) from error
        if os.fstat(descriptor).st_size > MAX_BYTES:
            raise PreconditionFailed(f"{path} has more than {MAX_BYTES} bytes", field="state")
        return _read(descriptor, path, digest, mask)
    except BaseException:
        os.close(descriptor)
        raise


def _read(descriptor: int, path: Path, digest: str, mask: SecretMask) -> StateFile:
    parts: list[bytes] = []
    while part := os.read(descriptor, 1024 * 1024):
        parts.append(part)
    data = b"".join(parts)
    whole = data[: data.rfind(b"\n") + 1]
    # A line that was cut off by the end of its process never counted.
    os.ftruncate(descriptor, len(whole))
    lines = whole.splitlines()
    if not lines:
        execution_id = uuid4().hex
        header = {"version": VERSION, "execution_id": execution_id, "run": digest}
        _write(descriptor, json.dumps(header).encode() + b"\n")
        return StateFile(descriptor, execution_id, {}, mask)
    try:
        head: Any = json.loads(lines[0])
        version, execution_id, run = head["version"], str(head["execution_id"]), head["run"]
        updates = [from_json(NodeUpdated, line) for line in lines[1:]]
    except (ValueError, TypeError, KeyError) as error:
        raise PreconditionFailed(f"{path} is not a workflow state", field="state", hint="use another file") from error
    if (version, run) != (VERSION, digest):
        raise PreconditionFailed(
            f"{path} belongs to another workflow or to other inputs",
            field="state",
            hint="use another file, or remove this one",
        )
    return StateFile(descriptor, execution_id, {update.node_id: update for update in updates}, mask)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]

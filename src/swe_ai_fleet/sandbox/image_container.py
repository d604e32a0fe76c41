"""The container of a task's image beside the one that the fleet runs in: sessions of it, for nodes without namespaces.

Both are of one Pod, with one network and one view of processes, and have the workspace, the home and /tmp in common,
each at the same place. See container_helper.py for the other end.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path

from swe_ai_fleet.domain.environment import ImageRoot
from swe_ai_fleet.domain.errors import Unavailable
from swe_ai_fleet.domain.json_values import json_object, mapping, string

_LONGEST = 200_000
_SECONDS = 60.0
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What the container's runtime and Kubernetes put beside the image's own.
_NOT_OF_THE_IMAGE = re.compile(r"HOSTNAME|KUBERNETES_.*|FLEET_.*")
_KILLED = b"137"


class ImageContainer:
    """What listens at `path` for the helper in the other container. The socket is made with the first session."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._listener: socket.socket | None = None

    async def root(self, image: str) -> ImageRoot:
        """The image as commands find it: its variables and its shell, the workspace at its own place only.

        Raises Unavailable.
        """
        connection, about = await self.connected()
        connection.close()
        description = json_object(about.decode("utf-8", "replace"))
        variables = {
            name: string(value)
            for name, value in mapping(description.get("variables")).items()
            if _NAME.fullmatch(name) and not _NOT_OF_THE_IMAGE.fullmatch(name)
        }
        shell, digest = string(description.get("shell")), image.rpartition("@")[2]
        return ImageRoot(digest=digest, path="", user=os.geteuid(), shell=shell, variables=variables)

    async def connected(self) -> tuple[socket.socket, bytes]:
        """A connection for one process, and what its helper says of the image. Raises Unavailable."""
        if self._listener is None:
            self._path.unlink(missing_ok=True)
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._listener.setblocking(False)
            self._listener.bind(str(self._path))
            self._listener.listen()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_SECONDS):
                while True:
                    connection, _ = await loop.sock_accept(self._listener)
                    connection.setblocking(False)
                    about = await loop.sock_recv(connection, _LONGEST)
                    if about and not _is_over(connection):
                        return connection, about
                    # It waited for longer than its container lived.
                    connection.close()
        except TimeoutError:
            raise Unavailable(f"the container of the image did not answer within {_SECONDS:.0f} s") from None


def _is_over(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False


class Entrusted:
    """A process of the other container, with what a session needs of one that it has started itself."""

    def __init__(self, connection: socket.socket, argv: Sequence[str], descriptors: Sequence[int]) -> None:
        self._connection = connection
        connection.settimeout(_SECONDS)
        try:
            socket.send_fds(connection, [json.dumps(argv).encode()], descriptors)
            self.pid = int(connection.recv(_LONGEST) or b"0")
            if not self.pid:
                raise OSError("the container of the image is gone")
            self.descriptor = os.pidfd_open(self.pid)
            connection.send(b".")
        except BaseException:
            connection.close()
            raise

    def poll(self) -> int:
        """The exit code, as a shell would tell it. To be asked once it has ended."""
        with self._connection as connection:
            try:
                return int(connection.recv(_LONGEST) or _KILLED)
            except OSError:
                return int(_KILLED)

    def terminate(self) -> None:
        """Have it told to end, which ends everything below it."""
        self._connection.shutdown(socket.SHUT_WR)

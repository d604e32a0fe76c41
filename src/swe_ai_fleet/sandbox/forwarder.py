"""Runs inside a sandbox: forwards TCP on the sandbox's own loopback to a unix socket, of the proxy or of a gateway.

A standalone script (`python -I -S forwarder.py PORT SOCKET`) that imports nothing of the fleet. It returns to its
caller once it listens, and serves from a child.
"""

from __future__ import annotations

import os
import socket
import sys
import threading

_CHUNK = 65536


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(_CHUNK):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        source.close()
        sink.close()


def _serve(client: socket.socket, path: str) -> None:
    upstream = socket.socket(socket.AF_UNIX)
    with client, upstream:
        try:
            upstream.connect(path)
        except OSError:
            return
        back = threading.Thread(target=_pump, args=(upstream, client), daemon=True)
        back.start()
        _pump(client, upstream)
        back.join()


def main(port: int, path: str) -> None:
    listener = socket.create_server(("127.0.0.1", port), backlog=128)
    if os.fork():
        return
    quiet = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(quiet, descriptor)
    while True:
        client, _ = listener.accept()
        threading.Thread(target=_serve, args=(client, path), daemon=True).start()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])

"""What a supervisor sees of a vLLM server, without one: its arguments, its log, its health, how it ends.

The model's name says how it behaves: `dies` at once, `never-ready`, `ignores-sigterm`; any other is well, and crashes
or wedges when asked to. Each start leaves a file with its arguments, its environment's names and its processes in
`--state`. It has an engine: a process of a session of its own, which outlives a server that does not end it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def argument(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


class Handler(BaseHTTPRequestHandler):
    wedged = threading.Event()
    ending = threading.Event()
    running = 0

    def do_GET(self) -> None:
        if self.wedged.is_set():
            time.sleep(60)
        if self.path == "/health":
            self.say(200, {})
        elif self.headers.get("Authorization") != f"Bearer {os.environ['VLLM_API_KEY']}":
            self.say(401, {"error": "Unauthorized"})
        else:
            self.say(200, {"data": [{"id": Path(argument("--model")).name}]})

    def do_POST(self) -> None:
        if self.path == "/crash":
            os._exit(41)
        if self.path == "/wedge":
            self.wedged.set()
            self.say(200, {})
            return
        if self.ending.is_set():
            self.say(503, {"error": "shutting down"})
            return
        type(self).running += 1
        (Path(argument("--state")) / "request").touch()
        time.sleep(float(self.path.removeprefix("/work/")))
        self.say(200, {"done": True})
        type(self).running -= 1

    def say(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    model, state = argument("--model"), Path(argument("--state"))
    engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
    number = len(list(state.glob("start-*")))
    started = {"argv": sys.argv, "environment": sorted(os.environ), "pids": [os.getpid(), engine.pid]}
    draft = state / "draft"
    draft.write_text(json.dumps(started))
    draft.rename(state / f"start-{number}")
    print("INFO loading weights", flush=True)
    if model == "dies":
        print("ValueError: this model does not fit into the memory of this GPU", flush=True)
        sys.exit(7)
    if model == "never-ready":
        time.sleep(300)
    if model == "ignores-sigterm":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: Handler.ending.set())
    server = ThreadingHTTPServer(("127.0.0.1", int(argument("--port"))), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    drained_by = None
    while drained_by is None or (Handler.running and time.monotonic() < drained_by):
        if Handler.ending.is_set() and drained_by is None:
            drained_by = time.monotonic() + float(argument("--shutdown-timeout"))
        time.sleep(0.01)
    print("INFO drained", flush=True)


main()

"""A whole run of an ordinary repository, inside of what `pod.py` makes: what it came to, as JSON on standard output.

Its requirements come from an index, its tests start servers and processes that share a lock.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from swe_ai_fleet.testing import Conversation, Script, ScriptedModelServer, Turn
from swe_ai_fleet.testing.repositories import make_repository
from tests.environments import Index, wheel
from tests.fleet_command import Shell

TASK = "Double what the shop asks for."
FILES = {
    "requirements.txt": "thing\n",
    "shop.py": "import thing\n\n\ndef price():\n    return thing.answer\n",
    "test_shop.py": """\
import http.server
import multiprocessing
import threading
import urllib.request

import shop


class Till(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(shop.price()).encode())

    def log_message(self, *args):
        pass


def test_the_till_answers():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Till)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/", timeout=30) as answer:
        assert answer.read() == b"14"
    server.shutdown()


def add(lock, total):
    with lock:
        total.value += shop.price()


def test_tills_add_up():
    lock, total = multiprocessing.Lock(), multiprocessing.Value("i", 0)
    tills = [multiprocessing.Process(target=add, args=(lock, total)) for _ in range(3)]
    for till in tills:
        till.start()
    for till in tills:
        till.join()
    assert total.value == 42
""",
}
CHANGED = FILES["shop.py"].replace("thing.answer", "2 * thing.answer")
_CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("files_write_file", {"path": "shop.py", "content": CHANGED}),
    ("tests_run", {}),
    ("git_add", {"paths": ["shop.py"]}),
    ("git_commit", {"message": "Double the price"}),
    ("final_answer", {"result": "The price is doubled; the tests pass."}),
)
SCRIPT = Script(conversations=(Conversation(match=TASK, turns=tuple(Turn(tool_calls=(call,)) for call in _CALLS)),))


async def main() -> dict[str, Any]:
    level = os.environ["FLEET_SANDBOX"]
    with tempfile.TemporaryDirectory() as name, Index({"thing-1.0-py3-none-any.whl": wheel("thing", 7)}) as index:
        repository = make_repository(Path(name, "shop"), FILES)
        async with ScriptedModelServer(SCRIPT) as model:
            more = {
                "FLEET_SANDBOX": level, "FLEET_SETUP_HOSTS": index.place, "FLEET_SETUP_PRIVATE_HOSTS": index.place,
                "FLEET_SETUP_VARIABLES": ",".join(index.variables), **index.variables,
            }  # fmt: skip
            shell = Shell(home=Path(os.environ["HOME"], "fleet"), model_url=model.url, more=more)
            # Who started this one bounds its time.
            process = await shell.start("run", "--local", "--json", "--repo", str(repository), "--agents", "1", TASK)
            out, err = await process.communicate()
    return {
        "user": os.geteuid(), "code": process.returncode,
        "out": out.decode(), "err": err.decode(), "asked": index.asked,
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main())))

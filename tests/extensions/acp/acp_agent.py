"""A harness as small as it can be: it speaks the Agent Client Protocol over its pipes, and does what its argument says.

A script of its own, of the standard library alone: `python3 acp_agent.py BEHAVIOUR`. It runs in the sandbox.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

GOOD = "\n\ndef hello_world():\n    return 'Hello, World!'\n"
HIDDEN = "sk-live-4f9a8b7c6d5e4f3a2b1c"
SESSION = "one"


def install(directory: Path) -> Path:
    """This script and a template of its home, installed in a directory of the host."""
    (directory / "home/.config").mkdir(parents=True)
    (directory / "home/.config/agent.json").write_text('{"url": "{model_url}"}\n')
    shutil.copy(__file__, directory / "acp_agent.py")
    return directory


def settings(behaviour: str, directory: Path) -> dict[str, Any]:
    """This script, where it was installed, as a harness of a fleet's settings that behaves so."""
    return {
        "command": ["python3", "/opt/harness/acp_agent.py", behaviour],
        "version": "0.1",
        "directory": str(directory),
        "home": str(directory / "home"),
        "variables": {"MODEL_NAME": "{model}", "OPENAI_BASE_URL": "{model_url}", "OPENAI_MODEL": "{model}"},
    }


class Client:
    """The fleet, as the agent sees it."""

    def __init__(self) -> None:
        self.asked = 0
        self.told: dict[str, Any] = {}

    def send(self, **message: Any) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()

    def read(self) -> dict[str, Any]:
        line = sys.stdin.readline()
        if not line:
            sys.exit(0)
        return json.loads(line)

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to a request, `{"error": …}` where it is one."""
        self.asked += 1
        self.send(id=f"a{self.asked}", method=method, params={"sessionId": SESSION, **parameters})
        while True:
            message = self.read()
            if message.get("id") == f"a{self.asked}":
                return message.get("result") if "result" in message else message

    def update(self, what: str, **fields: Any) -> None:
        parameters = {"sessionId": SESSION, "update": {"sessionUpdate": what, **fields}}
        self.send(method="session/update", params=parameters)

    def say(self, text: str) -> None:
        for part in (text[:7], text[7:]):
            self.update("agent_message_chunk", content={"type": "text", "text": part})

    def call(self, name: str, kind: str, status: str = "completed", **fields: Any) -> None:
        self.update("tool_call", toolCallId=name, kind=kind, title=fields.pop("title", name), status="pending")
        if status != "pending":
            self.update("tool_call_update", toolCallId=name, status=status, **fields)

    def may(self, kind: str, title: str, **fields: Any) -> str:
        """The kind of the option that was chosen; `cancelled` where none was."""
        kinds = ("allow_always", "allow_once", "reject_once")
        options = [{"optionId": f"option-{number}", "name": one, "kind": one} for number, one in enumerate(kinds)]
        call = {"toolCallId": f"ask-{self.asked}", "kind": kind, "title": title, **fields}
        outcome = self.ask("session/request_permission", toolCall=call, options=options)["outcome"]
        number = str(outcome.get("optionId", "")).removeprefix("option-")
        return kinds[int(number)] if number else "cancelled"


def good(client: Client, prompt: str) -> str:
    """Reads and writes through the client, runs one command there and one by itself, and knocks at the network."""
    client.update("plan", entries=[{"content": "Add it", "priority": "high", "status": "pending"}])
    client.say(f"I begin. {HIDDEN}")
    text = client.ask("fs/read_text_file", path="/workspace/utils.py")["content"]
    assert client.ask("fs/read_text_file", path="/workspace/utils.py", line=4, limit=1)["content"] == "def one():\n"
    assert client.ask("fs/read_text_file", path="/workspace/new.py")["error"]["code"] == -32002
    client.ask("fs/write_text_file", path="/workspace/utils.py", content=text + GOOD)
    # By itself: told, and not told.
    Path("/workspace/told.txt").write_text("told\n")
    client.call("c1", "edit", content=[{"type": "diff", "path": "/workspace/told.txt", "newText": "told\n"}])
    Path("/workspace/silent.txt").write_text("silent\n")
    ran = subprocess.run(
        ["python3", "-c", "import utils; print(utils.hello_world())"], cwd="/workspace", capture_output=True
    )
    printed = {"type": "content", "content": {"type": "text", "text": ran.stdout.decode()}}
    client.call("c2", "execute", rawInput={"command": "python3 -c …"}, content=[printed])
    terminal = client.ask("terminal/create", command="python3", args=["-c", "print(6 * 7)"], cwd="/workspace")
    code = client.ask("terminal/wait_for_exit", **terminal)["exitCode"]
    output = client.ask("terminal/output", **terminal)["output"]
    client.ask("terminal/release", **terminal)
    return f"Added hello_world. Terminal: {output} {code}. Network: {network()}. Home: {home()}."


def network() -> str:
    try:
        socket.create_connection(("198.51.100.1", 80), timeout=2)
    except OSError as error:
        return f"closed ({type(error).__name__})"
    return "open"


def home() -> str:
    """What the home that this agent was given holds, and a variable."""
    return f"{Path.home().joinpath('.config/agent.json').read_text().strip()} {os.environ.get('MODEL_NAME')}"


def asking(client: Client, prompt: str) -> str:
    """Asks before each of three things, and does what it may."""
    if "Decision: rejected" in prompt:
        client.say("I was told no.")
    chosen = [client.may("execute", "rm -rf /tmp/x", rawInput={"command": "rm -rf /tmp/x"})]
    if chosen[0].startswith("allow"):
        Path("/workspace/removed.txt").write_text("removed\n")
    chosen.append(client.may("edit", "utils.py", locations=[{"path": "/workspace/utils.py"}]))
    if chosen[1].startswith("allow"):
        text = Path("/workspace/utils.py").read_text()
        client.ask("fs/write_text_file", path="/workspace/utils.py", content=text + GOOD)
    chosen.append(client.may("edit", "Makefile", locations=[{"path": "/workspace/Makefile"}]))
    return f"Chosen: {', '.join(chosen)}"


def planning(client: Client, prompt: str) -> str:
    """Proposes first, as it is asked to; does it then."""
    if "propose" in prompt:
        try:
            Path("/workspace/early.txt").write_text("early\n")
        except OSError:
            return "Append hello_world to utils.py."
        return "The files could be changed before the plan was approved."
    text = client.ask("fs/read_text_file", path="/workspace/utils.py")["content"]
    client.ask("fs/write_text_file", path="/workspace/utils.py", content=text + GOOD)
    return "Did as proposed."


def dying(client: Client, prompt: str) -> str:
    """Leaves half of its work and a call that never ends."""
    client.say("Half of it.")
    Path("/workspace/half.txt").write_text("half\n")
    client.call("c1", "execute", status="pending", title="make everything")
    client.ask("fs/read_text_file", path="/workspace/utils.py")
    sys.stderr.write("out of memory\n")
    sys.stderr.flush()
    os._exit(3)


def hanging(client: Client, prompt: str) -> str:
    """Works until it is cancelled."""
    Path("/workspace/slow.txt").write_text("slow\n")
    client.say("Thinking.")
    while client.read().get("method") != "session/cancel":
        pass
    Path("/workspace/cancelled.txt").write_text("cancelled\n")
    client.send(id=client.told["prompt"], result={"stopReason": "cancelled"})
    while True:
        time.sleep(1)  # until it is killed: its pipes are closed, and it does not look


def talking(client: Client, prompt: str) -> str:
    """Writes what is no message between its messages."""
    print("warning: no colour", '{"half": ', "[1, 2]", "null", '{"id": 99, "result": {}}', "\x00\xff", "", sep="\n")
    client.send(method="session/update", params=[1])
    client.send(method="session/update", params={"sessionId": "another", "update": {"sessionUpdate": "plan"}})
    client.update("tool_call", toolCallId=7, kind=["edit"], title={"a": 1}, rawInput=3, locations="x", content=[[], 3])
    client.update("agent_message_chunk", content="no block")
    assert client.ask("nonsense/method")["error"]["code"] == -32601
    assert "error" in client.ask("fs/read_text_file", path=["utils.py"])
    assert "error" in client.ask("terminal/output", terminalId="none")
    return "All of it is passed over."


def flooding(client: Client, prompt: str) -> str:
    while True:
        print("x" * 100)


def bloating(client: Client, prompt: str) -> str:
    """One line without an end."""
    while True:
        sys.stdout.write("x" * 1_000_000)


def revising(client: Client, prompt: str) -> str:
    """Goes on from what it handed in before."""
    text = Path("/workspace/utils.py").read_text()
    Path("/workspace/utils.py").write_text(text.replace("Hello, World!", "Hello, you!"))
    return f"Told of it: {'Your second go' in prompt and 'too formal' in prompt}."


def escaping(client: Client, prompt: str) -> str:
    """Asks the client for what lies outside, in many ways."""
    os.symlink("/etc", "/workspace/link")
    tried = ("/etc/passwd", "../../etc/passwd", "link/passwd", ".git/config", "/workspace/.git/hooks/post-checkout")
    read = [path for path in tried if "error" not in client.ask("fs/read_text_file", path=path)]
    wrote = [path for path in tried if "error" not in client.ask("fs/write_text_file", path=path, content="boo")]
    Path("/workspace/link").unlink()
    return f"Read {read}, wrote {wrote}, network {network()}, sees {sorted(os.listdir('/opt/harness'))}"


def chatting(client: Client, prompt: str) -> str:
    """Asks its model, in the form that the variables say."""
    request = urllib.request.Request(
        f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
        json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": prompt}]}).encode(),
        {"Content-Type": "application/json", "Authorization": "Bearer none"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)["choices"][0]["message"]["content"] or "nothing said"
    except urllib.error.HTTPError as error:
        return f"HTTP {error.code}: {error.read().decode()[:500]}"


def main(behaviour: str) -> None:
    client = Client()
    if behaviour == "absent":
        sys.exit("no such model")
    while True:
        message = client.read()
        match message.get("method"):
            case "initialize":
                result = {"protocolVersion": 1, "agentInfo": {"name": "small", "version": "0.1"}}
                client.send(id=message["id"], result=result)
            case "session/new":
                client.send(id=message["id"], result={"sessionId": SESSION})
            case "session/prompt":
                client.told["prompt"] = message["id"]
                work = globals().get(behaviour, good)
                client.say(work(client, message["params"]["prompt"][0]["text"]))
                client.send(id=message["id"], result={"stopReason": "end_turn"})


if __name__ == "__main__":
    main(sys.argv[1])

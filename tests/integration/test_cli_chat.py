"""`fleet chat` with a running fleet: what a person types, and one message of a script."""

from __future__ import annotations

import uuid

from tests.fleet_command import Shell, ended


async def test_a_conversation_and_one_message_of_a_script(shell: Shell) -> None:
    session = f"cli-{uuid.uuid4().hex[:8]}"
    lines = "15 * 23 + 17\n\nList what the fleet did\nHave somebody greet\nno\n/list\n/new\nHello\n/quit\n"
    told = await ended(await shell.start("chat", "--session", session, stdin=lines.encode()))
    assert (told.code, "list_executions ..." in told.err) == (0, True), told.err
    for words in ("15 * 23 + 17 = 362", "Here is what it did.", "Add hello_world()"):
        assert words in told.out
    assert [session, "4", "no"] in [line.split() for line in told.out.splitlines()]
    once = (await shell.fleet("chat", "--session", session, "--once", "15 * 23 + 17", "--json")).document
    assert (once["text"], once["turn"]) == ("15 * 23 + 17 = 362", 5)
    assert [(await shell.fleet("chat", "--session", session, "--end")).code for _ in range(2)] == [0, 2]

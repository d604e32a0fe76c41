"""`fleet dlq`: lists, republishes or drops messages that could not be handled."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

from swe_ai_fleet.cli.options import argument
from swe_ai_fleet.cli.place import nats_of
from swe_ai_fleet.cli.screen import CommandFault, Exit, Screen
from swe_ai_fleet.domain.errors import NotFound
from swe_ai_fleet.settings import Settings

if TYPE_CHECKING:
    from swe_ai_fleet.adapters.jetstream.connection import Connection
    from swe_ai_fleet.adapters.jetstream.protocol import StoredMessage

Number = Annotated[int, argument("The message's number in `fleet dlq list`.", min=1, metavar="NUMBER")]
_TIMEOUT_SECONDS = 30.0


async def list_letters(screen: Screen, settings: Settings) -> Exit:
    from swe_ai_fleet.adapters.jetstream.protocol import DEAD_LETTERS
    from swe_ai_fleet.adapters.jetstream.reader import messages
    from swe_ai_fleet.runtime.factories import connect_log

    letters_found: list[StoredMessage] = []
    async with connect_log(nats_of(settings), name="dlq") as log:
        stored = messages(log.connection, DEAD_LETTERS, ">", follow=False, timeout=_TIMEOUT_SECONDS)
        async with aclosing(stored) as letters:
            letters_found = [letter async for letter in letters if letter is not None]
    documents = [
        {
            "number": letter.sequence,
            "subject": letter.headers.get("Fleet-Subject", ""),
            "deliveries": letter.headers.get("Fleet-Deliveries", ""),
            "reason": letter.headers.get("Fleet-Reason", ""),
            "bytes": len(letter.data),
        }
        for letter in letters_found
    ]
    rows = [tuple(map(str, letter.values())) for letter in documents]
    if screen.json:
        screen.document({"letters": documents})
    else:
        screen.table(tuple(documents[0]) if documents else (), rows, "no dead letters")
    return Exit.ACCEPTED


async def replay(screen: Screen, settings: Settings, number: Number) -> Exit:
    return await _settle(screen, settings, number, again=True)


async def drop(screen: Screen, settings: Settings, number: Number) -> Exit:
    return await _settle(screen, settings, number, again=False)


async def _settle(screen: Screen, settings: Settings, number: int, *, again: bool) -> Exit:
    from swe_ai_fleet.runtime.factories import connect_log

    async with connect_log(nats_of(settings), name="dlq") as log:
        subject = await settle(log.connection, number, again=again)
    screen.result(
        {"number": number, "subject": subject, "replayed": again},
        f"{number} is on {subject} again" if again else f"{number} is dropped",
    )
    return Exit.ACCEPTED


async def settle(connection: Connection, number: int, *, again: bool) -> str:
    """Remove a dead letter, with `again` after publishing it again; returns its original subject.

    Raises:
        NotFound: No dead letter has this number.
        CommandFault: It cannot be published again, because it was too large to be stored.
    """
    from swe_ai_fleet.adapters.jetstream.protocol import DEAD_LETTERS, MESSAGE_ID, from_api

    stream = DEAD_LETTERS
    fields = {"seq": number}
    answer = await connection.api_unless(404, f"STREAM.MSG.GET.{stream}", fields, timeout=_TIMEOUT_SECONDS)
    if answer is None:
        raise NotFound(f"there is no dead letter {number}", hint="fleet dlq list")
    letter = from_api(answer)
    subject = letter.headers.get("Fleet-Subject", "")
    if again:
        if "Fleet-Omitted-Bytes" in letter.headers or not subject:
            raise CommandFault("its content was not kept", hint="publish it again")
        # Published twice within minutes it is one message; later its task's id prevents a second execution.
        headers = {MESSAGE_ID: f"{stream}/{number}"}
        await connection.publish(subject, letter.data, headers=headers, timeout=_TIMEOUT_SECONDS)
    await connection.api_unless(404, f"STREAM.MSG.DELETE.{stream}", fields, timeout=_TIMEOUT_SECONDS)
    return subject

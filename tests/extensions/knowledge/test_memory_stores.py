"""Where memories are searched: what a crash, a stranger's file, a second process and a lost server leave of it."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import psycopg
import pytest

from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, PreconditionFailed, Unavailable
from swe_ai_fleet.domain.memory import Memory, MemoryScope
from swe_ai_fleet.extensions.knowledge.memory_index import FILE_NAME, open_memory_index
from tests.postgresql_server import PostgresqlServer

ALL = MemoryScope()
BATCH = 20
# Writes batches of memories with their vectors for ever (or so many), and says after each that it stands.
WRITER = """
import asyncio, sys
from pathlib import Path
from swe_ai_fleet.extensions.knowledge.memory_index import open_memory_index
from swe_ai_fleet.domain.memory import Memory

async def main(home, name, batches, size):
    async with open_memory_index("", Path(home)) as index:
        for number in range(1, int(batches) + 1):
            texts = [f"{name} batch b{number} entry e{one}" for one in range(int(size))]
            memories = [(Memory(namespace="fleet", text=text), [1.0, float(number)]) for text in texts]
            await index.put(memories, space=name, position=number)
            print(number, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


def fleets(text: str, **fields: object) -> Memory:
    return Memory(namespace="fleet", text=text, **fields)  # type: ignore[arg-type]


async def writer(home: Path, name: str, batches: int) -> asyncio.subprocess.Process:
    arguments = (str(home), name, str(batches), str(BATCH))
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, *arguments, stdout=asyncio.subprocess.PIPE
    )


async def told(process: asyncio.subprocess.Process, batches: int) -> int:
    """The batch that was said to stand last, once there are so many."""
    assert process.stdout is not None
    number = 0
    async with asyncio.timeout(60):
        while number < batches:
            number = int(await process.stdout.readline())
    return number


async def holds_whole_batches(path: Path, at_least: int) -> None:
    connection = apsw.Connection(str(path))
    assert connection.pragma("integrity_check") == "ok"
    connection.close()
    async with open_memory_index("", path.parent) as index:
        position = await index.position("crash")
        assert position >= at_least
        held = await index.listed(ALL, limit=1_000_000)
        assert len(held) == position * BATCH
        assert len(await index.search(ALL, words="crash", limit=10_000)) == position * BATCH
        assert len(await index.search(ALL, vector=[1.0, 1.0], space="crash", limit=10_000)) == position * BATCH
        if position:
            [newest] = await index.search(ALL, words=f"b{position} e7", limit=1)
            assert newest.memory.text == f"crash batch b{position} entry e7"
        await index.put([(fleets("after"), [0.0, 1.0])], space="crash", position=position + 1)
        assert await index.position("crash") == position + 1


async def test_a_torn_write_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    process = await writer(tmp_path, "crash", 100_000)
    await told(process, 6)
    process.kill()
    await process.wait()
    log = path.with_name(f"{FILE_NAME}-wal")
    size = log.stat().st_size
    assert size > 100_000
    for number, kept in enumerate((size - 3, size // 2 + 1_234, 17)):
        copy = tmp_path / f"torn{number}" / FILE_NAME
        copy.parent.mkdir()
        shutil.copy(path, copy)
        copy.with_name(log.name).write_bytes(log.read_bytes()[:kept])
        await holds_whole_batches(copy, 0)


def executed(path: Path, statements: str) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(statements)
    connection.close()


async def refused(where: str, home: Path, kind: type[FleetError], match: str) -> str:
    """What is said of a store that cannot be opened."""
    with pytest.raises(kind, match=match) as fault:
        async with open_memory_index(where, home):
            pass
    assert fault.value.field == "memory_store"
    return str(fault.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_text("no database at all, but a text of some length " * 20),
        lambda path: executed(path, "CREATE TABLE precious (a); INSERT INTO precious VALUES (1)"),
        lambda path: executed(
            path, f"PRAGMA application_id = {0x464D454D}; PRAGMA user_version = 99; CREATE TABLE memory (a)"
        ),
    ],
)
async def test_a_file_that_is_no_index_is_named_and_left_alone(tmp_path: Path, make: Callable[[Path], object]) -> None:
    path = tmp_path / FILE_NAME
    make(path)
    before = path.read_bytes() if path.is_file() else b""
    assert str(path) in await refused("", tmp_path, PreconditionFailed, ".")
    assert (path.read_bytes() if path.is_file() else b"") == before


async def test_what_is_forgotten_is_in_no_file(tmp_path: Path) -> None:
    secret = fleets("the zygomorphic passphrase is quixotry", metadata={"who": "xylophonist"})
    others = [fleets(f"ordinary {number} thing") for number in range(50)]

    def found() -> list[str]:
        everything = b"".join(file.read_bytes() for file in tmp_path.iterdir() if not file.name.endswith("-shm"))
        return [word for word in ("ygomorph", "uixotr", "ylophonist") if word.encode() in everything]

    async with open_memory_index("", tmp_path) as index:
        await index.put([(one, [1.0, 0.0]) for one in (*others[:25], secret, *others[25:])], space="s")
        assert len(found()) == 3
        await index.remove([secret.memory_id])
        assert found() == []
        assert len(await index.listed(ALL)) == 50


async def test_other_places_are_refused_without_their_password(tmp_path: Path) -> None:
    for where in (
        *("mysql://u:hunter2@h/d", "hunter2", "postgresql:hunter2", "chroma:/srv/hun"),
        "postgresql://u:hun%zzter2@h",
    ):
        assert "hun" not in await refused(where, tmp_path, InvalidRequest, ".")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresqlServer]:
    with PostgresqlServer.open() as opened:
        yield opened


async def test_fleets_that_share_a_database_see_nothing_of_each_other(server: PostgresqlServer, tmp_path: Path) -> None:
    url = server.database()
    memory = fleets("of one fleet")
    async with (
        open_memory_index(url, tmp_path, source="0123456789abcdef") as one,
        open_memory_index(url, tmp_path, source="fedcba9876543210") as other,
    ):
        await one.put([(memory, [1.0, 0.5])], space="v", position=7)
        assert (await one.position(""), await other.position("")) == (7, 0)
        assert await other.listed(ALL) == await other.search(ALL, words="fleet") == ()
        await other.put([(memory, [1.0, 0.5, 0.1])], space="v", position=3)
        await other.remove([memory.memory_id])
        assert [match.memory for match in await one.search(ALL, vector=[1.0, 0.5], space="v")] == [memory]
        assert [match.memory for match in await one.search(ALL, words="fleet")] == [memory]
    async with open_memory_index(url, tmp_path, source="0123456789abcdef") as again:
        assert await again.position("") == 7
    with pytest.raises(InvalidRequest):
        async with open_memory_index(url, tmp_path, source="x; DROP"):
            raise AssertionError


async def test_a_database_that_cannot_be_used_is_explained(server: PostgresqlServer) -> None:
    url = server.database()
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as administrator:
        await administrator.execute("CREATE ROLE nobody_much LOGIN PASSWORD 'hunter2'")
    for where, kind in (
        (url.replace("postgres@", "nobody_much:hunter2@"), PreconditionFailed),
        (url.replace("/test_", "/absent_"), Unavailable),
        ("postgresql://user:hunter2@127.0.0.1:1/db", Unavailable),
    ):
        told = await refused(where, Path("/nonexistent"), kind, r"the role|is unavailable")
        assert "hunter2" not in told

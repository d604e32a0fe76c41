"""Where memories are searched: what a stranger's file, another fleet and a lost server leave of it."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import apsw
import psycopg
import pytest

from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, PreconditionFailed, Unavailable
from swe_ai_fleet.domain.memory import Memory, MemoryKind, MemoryScope
from swe_ai_fleet.extensions.knowledge.memory_index import FILE_NAME, MemoryIndex, open_memory_index
from tests.postgresql_server import PostgresqlServer

ALL = MemoryScope()


def memory(text: str, **values: object) -> Memory:
    return Memory(**{"namespace": "fleet", "text": text} | values)  # type: ignore[arg-type]


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
    secret = memory("the zygomorphic passphrase is quixotry", metadata={"who": "xylophonist"})
    others = [memory(f"ordinary {number} thing") for number in range(50)]

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


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresqlServer]:
    with PostgresqlServer.open() as server:
        yield server


async def test_fleets_that_share_a_database_see_nothing_of_each_other(
    postgresql: PostgresqlServer, tmp_path: Path
) -> None:
    url = postgresql.database()
    known = memory("of one fleet")
    async with (
        open_memory_index(url, tmp_path, source="0123456789abcdef") as one,
        open_memory_index(url, tmp_path, source="fedcba9876543210") as other,
    ):
        await one.put([(known, [1.0, 0.5])], space="v", position=7)
        assert (await one.position(""), await other.position("")) == (7, 0)
        assert await other.listed(ALL) == await other.search(ALL, words="fleet") == ()
        await other.put([(known, [1.0, 0.5, 0.1])], space="v", position=3)
        await other.remove([known.memory_id])
        assert [match.memory for match in await one.search(ALL, vector=[1.0, 0.5], space="v")] == [known]
        assert [match.memory for match in await one.search(ALL, words="fleet")] == [known]
    async with open_memory_index(url, tmp_path, source="0123456789abcdef") as again:
        assert await again.position("") == 7
    with pytest.raises(InvalidRequest):
        async with open_memory_index(url, tmp_path, source="x; DROP"):
            raise AssertionError


async def test_a_database_that_cannot_be_used_is_explained(postgresql: PostgresqlServer) -> None:
    url = postgresql.database()
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as administrator:
        await administrator.execute("CREATE ROLE nobody_much LOGIN PASSWORD 'hunter2'")
    for where, kind in (
        (url.replace("postgres@", "nobody_much:hunter2@"), PreconditionFailed),
        (url.replace("/test_", "/absent_"), Unavailable),
        ("postgresql://user:hunter2@127.0.0.1:1/db", Unavailable),
    ):
        told = await refused(where, Path("/nonexistent"), kind, r"the role|is unavailable")
        assert "hunter2" not in told


# --- what every index of memories does: in SQLite, on a real PostgreSQL ---


@pytest.fixture(params=["sqlite", "postgresql"])
async def index(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MemoryIndex]:
    where = ""
    if request.param == "postgresql":
        server: PostgresqlServer = request.getfixturevalue("postgresql")
        where = server.database()
    async with open_memory_index(where, tmp_path) as opened:
        yield opened


async def put(index: MemoryIndex, *memories: Memory, position: int = 0) -> None:
    await index.put([(one, None) for one in memories], position=position)


async def by_words(index: MemoryIndex, words: str, scope: MemoryScope = ALL, limit: int = 10) -> list[str]:
    return [match.memory.text for match in await index.search(scope, words=words, limit=limit)]


async def by_vector(
    index: MemoryIndex, vector: list[float], scope: MemoryScope = ALL, space: str = "s", limit: int = 10
) -> list[str]:
    return [match.memory.text for match in await index.search(scope, vector=vector, space=space, limit=limit)]


MAKE = memory("Run the tests with make check; the linter runs first.", created_at="2026-01-01T00:00:00Z")
COLOUR = memory("Ada's favourite colour is teal.", created_at="2026-01-02T00:00:00Z", metadata={"by": "ada"})
CACHE = memory(
    "The resolver keeps a stale cache: call clearResolverCache before the second run.",
    namespace="repository:web-1",
    kind=MemoryKind.OUTCOME,
    created_at="2026-01-03T00:00:00Z",
    metadata={"by": "bob", "stage": "fix"},
    source="execution:7",
)
THREE = (MAKE, COLOUR, CACHE)


async def test_words_find_the_memory_that_has_them(index: MemoryIndex) -> None:
    await put(index, *THREE)
    assert await by_words(index, "What is the favourite colour?") == [COLOUR.text]
    assert (await by_words(index, "make resolver cache"))[0] == CACHE.text
    assert sorted(await by_words(index, "run")) == sorted([MAKE.text, CACHE.text])
    assert await by_words(index, "elephant") == []
    assert await by_words(index, "") == []
    assert await index.search(ALL) == ()


async def test_a_memory_comes_back_as_it_was(index: MemoryIndex) -> None:
    odd = memory("\0 A\u00e9\U0001f600 'quoted' \"twice\" \\ %s $1\n\tend", metadata={"k'\"\0": "\U0001f600\0", "": ""})
    await index.put([(CACHE, [1.0, 0.0]), (odd, [0.0, 1.0])], space="s")
    [found] = await index.search(MemoryScope(namespaces=(CACHE.namespace,)), words="resolver")
    assert found.memory == CACHE
    [found] = await index.search(MemoryScope(metadata=odd.metadata), vector=[0.0, 1.0], space="s")
    assert found.memory == odd
    assert {one.text for one in await index.listed(ALL)} == {CACHE.text, odd.text}


async def test_words_are_found_in_another_form(index: MemoryIndex) -> None:
    await put(index, *THREE, memory("Zoë prefers the café"), memory("設定ファイルは東京にある"), memory("Straße"))
    assert await by_words(index, "TEST") == [MAKE.text]
    assert await by_words(index, "linters") == [MAKE.text]
    assert await by_words(index, "zoe CAFE") == ["Zoë prefers the café"]
    assert await by_words(index, "clear") == [CACHE.text]
    assert await by_words(index, "東京") == ["設定ファイルは東京にある"]
    assert await by_words(index, "STRASSE") == ["Straße"]
    await put(index, memory("HTTPServer parseJSON x2y snake_case_name"))
    for word in ("server", "json", "x2", "snake", "httpserver", "NAME"):
        assert await by_words(index, word) == ["HTTPServer parseJSON x2y snake_case_name"], word


async def test_vectors_find_what_points_the_same_way(index: MemoryIndex) -> None:
    await index.put([(MAKE, [1.0, 0.0, 0.0]), (COLOUR, [0.6, 0.8, 0.0]), (CACHE, [-2.0, 0.0, 0.0])], space="s")
    found = await index.search(ALL, vector=[5.0, 0.0, 0.0], space="s")
    assert [match.memory for match in found] == [MAKE, COLOUR, CACHE]
    assert [match.score for match in found] == pytest.approx([1.0, 0.6, -1.0], abs=1e-4)
    assert await by_vector(index, [0.0, 1.0, 0.0], limit=1) == [COLOUR.text]
    assert await by_vector(index, [0.0, 0.0, 0.0]) == []


async def test_spaces_do_not_mix(index: MemoryIndex) -> None:
    other = "other embedder: 3"
    await index.put([(MAKE, [1.0, 0.0])], space="s", position=5)
    await index.put([(COLOUR, [1.0, 0.0, 0.0])], space=other, position=3)
    assert await by_vector(index, [1.0, 0.0]) == [MAKE.text]
    assert await by_vector(index, [1.0, 0.0, 0.0], space=other) == [COLOUR.text]
    assert await by_vector(index, [1.0, 0.0, 0.0]) == await by_vector(index, [1.0, 0.0], space="none such") == []
    assert [await index.position(space) for space in ("s", other, "none such", "")] == [5, 3, 0, 5]


async def test_a_vector_is_one(index: MemoryIndex) -> None:
    await index.put([(MAKE, [1.0, 0.0])], space="s")
    for wrong in ([math.nan, 1.0], [math.inf, 1.0], [1.0, 0.0, 0.0], [1.0] * 9_000):
        with pytest.raises(InvalidRequest) as told:
            await index.put([(CACHE, None), (COLOUR, wrong)], space="s", position=9)
        assert told.value.field == "vector"
    assert await index.listed(ALL) == (MAKE,)
    assert await index.position("s") == 0
    with pytest.raises(InvalidRequest):
        await index.search(ALL, words="tests", vector=[1.0, 0.0], space="s")
    with pytest.raises(InvalidRequest):
        await index.search(ALL, vector=[math.nan, 0.0], space="s")
    await index.put([(COLOUR, [0.0, 0.0])], space="s")
    assert await by_vector(index, [1.0, 0.0]) == [MAKE.text]


async def test_a_scope_limits_what_is_found(index: MemoryIndex) -> None:
    foreign = replace(MAKE, tenant="rival")
    everywhere = (*THREE, foreign)
    await index.put([(one, [1.0, float(number)]) for number, one in enumerate(everywhere)], space="s")
    words = "tests colour resolver"
    for scope, expected in (
        (ALL, THREE),
        (MemoryScope(tenant="rival"), (foreign,)),
        (MemoryScope(namespaces=("fleet",)), (MAKE, COLOUR)),
        (MemoryScope(namespaces=("fleet", "repository:web-1")), (MAKE, COLOUR, CACHE)),
        (MemoryScope(kinds=(MemoryKind.OUTCOME, MemoryKind.FACT), namespaces=("fleet",)), (MAKE, COLOUR)),
        (MemoryScope(metadata={"by": "bob", "stage": "fix"}), (CACHE,)),
        (MemoryScope(metadata={"by": "ada", "stage": "fix"}), ()),
        (MemoryScope(metadata={"by' OR 1=1 --": "bob"}), ()),
        (MemoryScope(tenant="rival", metadata={"by": "bob"}), ()),
    ):
        ids = {one.memory_id for one in expected}
        assert {match.memory.memory_id for match in await index.search(scope, words=words)} == ids, scope
        assert {match.memory.memory_id for match in await index.search(scope, vector=[1, 1], space="s")} == ids, scope
        assert {one.memory_id for one in await index.listed(scope)} == ids, scope


async def test_the_scope_comes_before_the_limit(index: MemoryIndex) -> None:
    crowd = [memory(f"deploy {number}", tenant="rival" if number % 2 else "default") for number in range(300)]
    wanted = memory("deploy a lot of other things than those", namespace="agent:a", metadata={"rare": "yes"})
    await index.put([*((one, [1.0, 0.0]) for one in crowd), (wanted, [0.0, 1.0])], space="s")
    for scope in (MemoryScope(namespaces=("agent:a",)), MemoryScope(metadata={"rare": "yes"})):
        assert await by_words(index, "deploy", scope, limit=2) == [wanted.text]
        assert await by_vector(index, [1.0, 0.0], scope, limit=2) == [wanted.text]


async def test_an_equal_memory_is_replaced(index: MemoryIndex) -> None:
    await index.put([(MAKE, [1.0, 0.0])], space="s")
    again = replace(
        MAKE, text=MAKE.text.upper(), kind=MemoryKind.INTERACTION, metadata={"new": "1"}, created_at="2027-01-01"
    )
    assert again.memory_id == MAKE.memory_id
    await index.put([(again, None)])
    assert await index.listed(ALL) == (again,)
    assert [match.memory for match in await index.search(ALL, words="linter")] == [again]
    assert await index.listed(MemoryScope(kinds=(MemoryKind.FACT,))) == ()
    # Nobody took its vector away, which follows it.
    assert await by_vector(index, [1.0, 0.0], MemoryScope(kinds=(MemoryKind.INTERACTION,))) == [again.text]
    assert await by_vector(index, [1.0, 0.0], MemoryScope(metadata={"new": "1"})) == [again.text]
    assert await by_vector(index, [1.0, 0.0], MemoryScope(kinds=(MemoryKind.FACT,))) == []


async def test_what_was_removed_is_found_no_more(index: MemoryIndex) -> None:
    await index.put([(one, [1.0, 0.0]) for one in THREE], space="s")
    await index.put([(one, [0.0, 1.0]) for one in THREE], space="t")
    await index.remove([COLOUR.memory_id, "never there"], space="s", position=8)
    await index.remove([])
    assert await by_words(index, "colour tests") == [MAKE.text]
    for space in ("s", "t"):
        assert sorted(await by_vector(index, [1.0, 1.0], space=space)) == sorted([MAKE.text, CACHE.text])
    assert await index.listed(ALL) == (CACHE, MAKE)
    assert (await index.position("s"), await index.position("t")) == (8, 0)
    await put(index, COLOUR)
    assert await by_words(index, "colour") == [COLOUR.text]
    assert COLOUR.text not in await by_vector(index, [1.0, 1.0])


HOSTILE = [
    '"', "'", '" OR 1=1 --', "NEAR(a b)", "words: *", "a* AND NOT b", "^a", "{content} : a", "(((", "\0", "a\0b",
    "\ud800", "\U0001f600", "' | !tests & <-> :*", "\\", "%s %(a)s", "$contains", "-", "+a", "tests\u202e",
    "\ufdfa" * 50, "AND OR NOT",
]  # fmt: skip


async def test_a_query_is_never_syntax(index: MemoryIndex) -> None:
    await put(index, MAKE, CACHE)
    for text in HOSTILE:
        assert await by_words(index, f"{text} linter {text}") == [MAKE.text], ascii(text)
        await by_words(index, text)
    assert await by_words(index, "linter " + "nothing-of-it " * 10_000) == [MAKE.text]
    assert await by_words(index, "linter " + '"' * 100_000) == [MAKE.text]
    assert await index.search(MemoryScope(tenant="\ud800\0", metadata={"\0": "\ud800"}), words="linter") == ()

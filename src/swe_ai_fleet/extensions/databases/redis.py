"""Redis and Valkey: one command on a new connection, classified by the server's own COMMAND INFO."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, cast

from swe_ai_fleet.domain.json_values import is_mapping, items
from swe_ai_fleet.extensions.databases.results import Collector, QueryBounds, Rows, cell
from swe_ai_fleet.tools.definition import ToolFailure, ToolRefusal

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection

Argument = str | int | float

_CONNECT_SECONDS = 10.0

MAX_VALUE_BYTES = 16 * 1024 * 1024
"""Larger values (by memory on the server) are not fetched: a client holds a reply in one piece."""

MAX_KEYS = 1_000
_KEYS_DESCRIBED = 50
MAX_ARGUMENT_BYTES = 1024 * 1024

_WORDS_OF_REFUSED = (
    "config shutdown lcs debug script function module flushall flushdb save bgsave bgrewriteaof replicaof slaveof "
    "migrate monitor subscribe psubscribe ssubscribe unsubscribe punsubscribe sunsubscribe client acl cluster "
    "failover sync psync replconf restore restore-asking swapdb select auth hello reset quit multi exec discard "
    "watch unwatch wait waitaof latency slowlog pfdebug pfselftest readonly readwrite asking sentinel"
)
REFUSED = frozenset(_WORDS_OF_REFUSED.split())
"""Refused in every mode, as all EVAL and FCALL are: they affect the server, other clients or databases, or run code."""

_REFUSED_FLAGS = frozenset({"admin", "pubsub", "blocking"})
_HARMLESS = frozenset({"ping", "echo", "time", "info"})
_CONTAINERS = frozenset({"object", "memory", "xinfo", "command", "xgroup"})
_SCANS = frozenset({"scan", "hscan", "sscan", "zscan"})
_WORDS_OF_SMALL_REPLIES = (
    "strlen llen hlen scard zcard xlen type ttl pttl expiretime exists object memory hget hexists hstrlen "
    "sismember smismember zscore zrank zrevrank zcount lindex lpos getbit bitcount xinfo pfcount"
)
_SMALL_REPLIES = _SCANS | frozenset(_WORDS_OF_SMALL_REPLIES.split())
_NAME = re.compile(r"[A-Za-z][A-Za-z_-]{0,40}")


async def command(url: str, name: str, args: Sequence[Argument], bounds: QueryBounds) -> Rows:
    check(name, args)
    async with _session(url) as connection:
        await _check_flags(connection, name, args, read_only=bounds.read_only)
        await _check_size(connection, name, args)
        return _rows(await _ask(connection, name, *args), bounds.max_rows)


async def describe(url: str, _: QueryBounds) -> Rows:
    """The number of keys, and some of them with their types."""
    async with _session(url) as connection:
        total = await _ask(connection, "DBSIZE")
        keys: list[object] = []
        cursor: object = b"0"
        while len(keys) < _KEYS_DESCRIBED:
            cursor, batch = items(await _ask(connection, "SCAN", cursor, "COUNT", 100))
            keys += items(batch)
            if cursor in (b"0", "0"):
                break
        collector = Collector(("key", "type"), _KEYS_DESCRIBED)
        for key in keys[: _KEYS_DESCRIBED + 1]:
            collector.add((key, await _ask(connection, "TYPE", key)))
    return collector.rows(f"{cell(total)} keys in all.", {"keys": total})


def check(name: str, args: Sequence[Argument]) -> None:
    """Refuse the commands that no mode allows, before anything is sent. Raises ToolFailure."""
    lower = name.lower()
    if not _NAME.fullmatch(name):
        raise ToolFailure(f"{name[:80]!r} is not a command name; its arguments go into `args`")
    if lower in REFUSED or lower.startswith(("eval", "fcall")):
        raise ToolRefusal(f"{name.upper()} is refused here: it reaches the server itself, other clients or runs code")
    if sum(len(str(value).encode("utf-8", "replace")) for value in args) > MAX_ARGUMENT_BYTES:
        raise ToolFailure(f"the arguments have more than {MAX_ARGUMENT_BYTES} bytes")
    for option, value in pairwise(args):
        if lower in _SCANS and str(option).lower() == "count" and not _at_most(value, MAX_KEYS):
            raise ToolFailure(f"COUNT is at most {MAX_KEYS} here; go on with the cursor of the reply")


async def _check_flags(connection: AbstractConnection, name: str, args: Sequence[Argument], *, read_only: bool) -> None:
    lower = name.lower()
    if lower in _CONTAINERS and args:
        flags = await _flags(connection, f"{lower}|{str(args[0]).lower()}")
    else:
        flags = await _flags(connection, lower)
    if flags & _REFUSED_FLAGS:
        raise ToolRefusal(f"{name.upper()} is refused here: the server says it is {', '.join(sorted(flags))}")
    if read_only and "readonly" not in flags and lower not in _HARMLESS:
        raise ToolRefusal(f"{name.upper()} may write; with read_only=true only commands that the server calls readonly")


async def _flags(connection: AbstractConnection, name: str) -> frozenset[str]:
    info = next(iter(items(await _ask(connection, "COMMAND", "INFO", name))), None)
    if is_mapping(info):  # RESP3 servers may answer with a map by name
        info = next(iter(info.values()), None)
    if not isinstance(info, list):
        raise ToolFailure(f"the server knows no command {name.replace('|', ' ').upper()}")
    return frozenset(_plain(flag).lower() for flag in cast("Sequence[object]", info[2]))


async def _check_size(connection: AbstractConnection, name: str, args: Sequence[Argument]) -> None:
    """Refuse unbounded replies: all keys of a large database, and values too large to fetch."""
    lower = name.lower()
    if lower == "keys":
        total = await _ask(connection, "DBSIZE")
        if not _at_most(total, MAX_KEYS):
            raise ToolFailure(f"KEYS would walk all {total} keys; use SCAN 0 MATCH pattern COUNT 100")
        return
    if lower in _SMALL_REPLIES or not args:
        return
    for key in await _keys(connection, name, args):
        size = await _ask(connection, "MEMORY", "USAGE", key)
        if size is not None and not _at_most(size, MAX_VALUE_BYTES):
            raise ToolFailure(
                f"the value of {cell(key)} takes {size} bytes, more than the {MAX_VALUE_BYTES} that are handled whole; "
                "look at it in parts: STRLEN, HSCAN, SSCAN, ZSCAN, HGET, LINDEX"
            )


async def _keys(connection: AbstractConnection, name: str, args: Sequence[Argument]) -> list[object]:
    try:
        return items(await _ask(connection, "COMMAND", "GETKEYS", name, *args))
    except ToolFailure:  # a command without keys, or with arguments that it will itself reject
        return []


async def _ask(connection: AbstractConnection, *words: object) -> object:
    from redis.exceptions import RedisError, ResponseError

    try:
        await connection.send_command(*words)
        return cast("object", await connection.read_response())
    except ResponseError as error:
        raise ToolFailure(f"Redis: {error}") from None
    except (RedisError, OSError) as error:
        raise ToolFailure(f"Redis: the connection failed: {type(error).__name__}") from None


@asynccontextmanager
async def _session(url: str) -> AsyncGenerator[AbstractConnection]:
    """A new connection, always closed, so that no reply can be taken for that of another call."""
    try:
        from redis.asyncio import ConnectionPool
        from redis.exceptions import AuthenticationError, RedisError
    except ImportError:
        raise ToolFailure("Redis needs its driver: pip install 'swe-ai-fleet[db]'") from None
    if url.startswith("valkey://"):
        url = "redis" + url.removeprefix("valkey")
    # The caller's time limit bounds replies, not the driver's.
    pool = ConnectionPool.from_url(url, socket_timeout=None, socket_connect_timeout=_CONNECT_SECONDS)
    connection = pool.make_connection()
    try:
        try:
            await connection.connect()
        except (RedisError, OSError) as error:
            # Some versions wrap it. Its message names the host, so it is not shown.
            if isinstance(error, AuthenticationError) or isinstance(error.__cause__, AuthenticationError):
                raise ToolFailure("the connection to Redis cannot be opened: its credentials are refused") from None
            raise ToolFailure(f"the connection to Redis cannot be opened: {type(error).__name__}") from None
        yield connection
    finally:
        await connection.disconnect(nowait=True)


def _rows(reply: object, max_rows: int) -> Rows:
    if is_mapping(reply):
        columns, cells = ("field", "value"), [(field, _nested(value)) for field, value in reply.items()]
    else:
        parts = _several(reply)
        columns, cells = ("reply",), [(_nested(part),) for part in ([reply] if parts is None else parts)]
    collector = Collector(columns, max_rows)
    for row in cells:
        if not collector.add(row):
            break
    return collector.rows()


def _nested(value: object) -> object:
    """A value as `cell` takes it; lists within a reply become one line."""
    if is_mapping(value):
        return "{" + ", ".join(f"{cell(name)}: {cell(_nested(part))}" for name, part in value.items()) + "}"
    parts = _several(value)
    return value if parts is None else "[" + ", ".join(cell(_nested(part)) for part in parts) + "]"


def _several(value: object) -> Collection[object] | None:
    return cast("Collection[object]", value) if isinstance(value, list | tuple | set | frozenset) else None


def _plain(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _at_most(value: object, limit: int) -> bool:
    try:
        return int(_plain(value)) <= limit
    except ValueError:
        return False

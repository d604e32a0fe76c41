"""PostgreSQL: one statement in one transaction on a new connection, streamed so that only kept rows take memory.

PostgreSQL itself enforces read-only calls: a READ ONLY transaction that is always rolled back, and that no statement
can make writable because a snapshot was taken before. Privileges protect the server's files and programs: a role that
may become superuser, read or write server files or run programs is refused. The word lists here are a second line, for
what an ordinary role may do and no agent should. They compare names as the server reads them. In a read-only call, each
function must also be known as harmless: by the server's catalogue, by its language (one of the database's own), or by
name.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain, pairwise
from typing import TYPE_CHECKING

from swe_ai_fleet.extensions.databases.results import Collector, QueryBounds, Rows, Value
from swe_ai_fleet.tools.definition import ToolFailure, ToolRefusal

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from psycopg.pq.abc import PGresult
    from psycopg.rows import TupleRow

_SPACE = re.compile(r"[ \t\n\r\f\v]+|--[^\n\r]*")
_COMMENT = re.compile(r"/\*|\*/")
_NAME = re.compile(r"[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*")
_PREFIXED = re.compile(r"(?P<escapes>[eE])'|[bBxXnN]'|(?P<unicode>[uU]&)(?P<quote>['\"])|(?P<plain>['\"])")
_QUOTED = {
    "'": re.compile(r"((?:[^']|'')*+)'"),
    '"': re.compile(r'((?:[^"]|"")*+)"'),
    "e": re.compile(r"((?:[^'\\]|''|\\.)*+)'", re.DOTALL),
}
"""The content after an opening quote, with the closing one; `e` is a string with escapes."""
_DOLLAR = re.compile(r"\$(?:[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_\x80-\U0010ffff]*)?\$")
_ESCAPED = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|x([0-9A-Fa-f]{1,2})|([0-7]{1,3})|(.))", re.DOTALL)
_LETTERS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_MAX_NAME_BYTES = 63


class TokenKind(StrEnum):
    NAME = "name"
    STRING = "string"
    SIGN = "sign"
    UNCLOSED = "unclosed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A name as the server looks it up, a string's content, one other character, or an unclosed quote or comment.

    `escaped` says that its Unicode escapes are not decoded yet: a UESCAPE after it may name their sign.
    """

    kind: TokenKind
    text: str
    escaped: bool = False


_OPENING = Token(kind=TokenKind.SIGN, text="(")


def tokens(sql: str) -> Iterator[Token]:
    """The tokens of a statement; strings that the server joins are one."""
    joined: Token | None = None
    for token in _decoded(list(_raw(sql))):
        if token.kind is TokenKind.STRING:
            joined = token if joined is None else Token(kind=TokenKind.STRING, text=joined.text + token.text)
            continue
        if joined is not None:
            yield joined
            joined = None
        yield token
    if joined is not None:
        yield joined


def _raw(sql: str) -> Iterator[Token]:
    at = 0
    while at < len(sql):
        if space := _SPACE.match(sql, at):
            at = space.end()
        elif sql.startswith("/*", at):
            end = _after_comment(sql, at)
            if end < 0:
                yield Token(kind=TokenKind.UNCLOSED, text="/*")
                return
            at = end
        elif opened := _PREFIXED.match(sql, at):
            quote = sql[opened.end() - 1]
            rest = _QUOTED["e" if opened["escapes"] else quote].match(sql, opened.end())
            if rest is None:
                yield Token(kind=TokenKind.UNCLOSED, text=quote)
                return
            content = rest[1].replace(quote * 2, quote)
            kind = TokenKind.NAME if quote == '"' else TokenKind.STRING
            content = _unescaped(content) if opened["escapes"] else content
            yield Token(kind=kind, text=content, escaped=bool(opened["unicode"]))
            at = rest.end()
        elif name := _NAME.match(sql, at):
            yield Token(kind=TokenKind.NAME, text=re.sub("[A-Z]+", lambda match: match[0].lower(), name[0]))
            at = name.end()
        elif tag := _DOLLAR.match(sql, at):
            end = sql.find(tag[0], tag.end())
            if end < 0:
                yield Token(kind=TokenKind.UNCLOSED, text="$")
                return
            yield Token(kind=TokenKind.STRING, text=sql[tag.end() : end])
            at = end + len(tag[0])
        else:
            yield Token(kind=TokenKind.SIGN, text=sql[at])
            at += 1


def _decoded(raw: list[Token]) -> Iterator[Token]:
    skipped = 0
    for at, token in enumerate(raw):
        if skipped:
            skipped -= 1
            continue
        text = token.text
        if token.escaped:
            sign = "\\"
            following = raw[at + 1 : at + 3]
            if len(following) == 2 and following[0].text == "uescape" and len(following[1].text) == 1:
                sign, skipped = following[1].text, 2
            text = _with_unicode(text, sign)
        if token.kind is TokenKind.NAME:
            text = text.encode("utf-8", "replace")[:_MAX_NAME_BYTES].decode("utf-8", "ignore")
        yield Token(kind=token.kind, text=text)


def _after_comment(sql: str, at: int) -> int:
    depth = 0
    for mark in _COMMENT.finditer(sql, at):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    return -1


def _unescaped(text: str) -> str:
    def character(escape: re.Match[str]) -> str:
        if escape[5] is not None:
            return _LETTERS.get(escape[5], escape[5])
        return _character(escape[4], 8) if escape[4] else _character(escape[1] or escape[2] or escape[3], 16)

    return _ESCAPED.sub(character, text)


def _with_unicode(text: str, sign: str) -> str:
    escaped = re.compile(rf"{re.escape(sign)}(?:([0-9A-Fa-f]{{4}})|\+([0-9A-Fa-f]{{6}})|{re.escape(sign)})")
    return escaped.sub(lambda match: _character(match[1] or match[2], 16) if match[1] or match[2] else sign, text)


def _character(digits: str, base: int) -> str:
    code = int(digits, base)
    return chr(code) if code <= 0x10FFFF else "\ufffd"


_CONNECT_SECONDS = 10
_CANCEL_SECONDS = 2.0
_QUERY_CANCELED = "57014"
_READ_ONLY_TRANSACTION, _INSUFFICIENT_PRIVILEGE = "25006", "42501"
_MAX_DEPTH = 3
"""The depth to which strings in statements are checked as statements."""

_WORDS_OF_REFUSED_STATEMENTS = (
    "copy load listen unlisten notify set reset discard begin start commit end rollback abort savepoint release "
    "prepare execute deallocate declare fetch move close checkpoint"
)
REFUSED_STATEMENTS = frozenset(_WORDS_OF_REFUSED_STATEMENTS.split())
"""Statements refused in every mode: files, programs, plug-ins, and any that end or change the transaction."""

REFUSED_READING = frozenset({"do", "lock"})
"""Also refused in read-only calls: code in which the names below could hide, and locks."""

REFUSED_FUNCTIONS = re.compile(
    r"dblink\w*|lo_(?:export|import)|pg_read_(?:binary_)?file|pg_ls_\w+|pg_stat_file|pg_file_\w+|pg_execute_\w+"
    r"|pg_(?:terminate|cancel)_backend|pg_reload_conf|pg_rotate_logfile|pg_logical_emit_message|pg_switch_wal"
    r"|pg_promote|pg_create_\w*_?replication_slot\w*|pg_create_(?:physical|logical)_replication_slot"
    r"|pg_drop_replication_slot|query_to_xml\w*|database_to_xml\w*|schema_to_xml\w*|cursor_to_xml\w*|ts_stat|ts_rewrite"
    r"|crosstab\w*|connectby|xpath_table"
)
"""Functions refused in every mode: they reach the server's files, other connections or sessions, or run strings."""

READING_FUNCTIONS = re.compile(
    r"random(?:_normal)?|setseed|clock_timestamp|timeofday|gen_random_\w+|uuid_generate_v\w+|uuidv[47]|gen_salt"
    r"|currval|lastval|nextval|setval|set_config|pg_sleep(?:_for|_until)?|pg_(?:try_)?advisory_\w+"
    r"|pg_(?:table|relation|total_relation|indexes|database|tablespace)_size|pg_is_in_recovery|pg_current_xact_id\w*"
    r"|txid_current\w*|pg_(?:current|last)_wal_\w+"
)
"""Functions that the catalogue calls volatile, but whose effects do not outlive a read-only session."""

_VOLATILE = """
SELECT coalesce(string_agg(DISTINCT p.proname, ', '), '') FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
WHERE p.proname IN (SELECT json_array_elements_text($1::json))
AND p.provolatile = 'v' AND l.lanname IN ('internal', 'c')
"""
_PRIVILEGED_ROLES = """
SELECT coalesce(string_agg(r.rolname, ', '), '') FROM pg_roles r
WHERE (r.rolsuper OR r.rolname IN ('pg_read_server_files', 'pg_write_server_files', 'pg_execute_server_program'))
AND pg_has_role(session_user, r.oid, 'MEMBER')
"""
_SCHEMA = """
SELECT t, n, d FROM (
  SELECT format('%I.%I', c.table_schema, c.table_name) AS t, c.ordinal_position AS o, c.column_name::text AS n,
    c.data_type || CASE c.is_nullable WHEN 'NO' THEN ' NOT NULL' ELSE '' END
    || coalesce(' DEFAULT ' || c.column_default, '') AS d
  FROM information_schema.columns c WHERE c.table_schema NOT IN ('pg_catalog', 'information_schema')
  UNION ALL
  SELECT format('%I.%I', s.nspname, r.relname), 10000, k.conname::text, pg_get_constraintdef(k.oid)
  FROM pg_constraint k JOIN pg_class r ON r.oid = k.conrelid JOIN pg_namespace s ON s.oid = r.relnamespace
  WHERE s.nspname NOT IN ('pg_catalog', 'information_schema') AND k.contype IN ('p', 'u', 'f', 'c')
) AS everything ORDER BY t, o, n
"""


async def query(url: str, sql: str, params: Sequence[Value], bounds: QueryBounds) -> Rows:
    """Run one statement with `$1`, `$2` … as parameters. Raises ToolFailure, TimeoutError."""
    called = check(sql, read_only=bounds.read_only)
    async with _session(url, bounds) as connection:
        if bounds.read_only:
            await _check_volatile(connection, called)
        rows = await _stream(connection, sql, params, max_rows=bounds.max_rows, drain=not bounds.read_only)
        if not bounds.read_only:
            await _stream(connection, "COMMIT", (), max_rows=1, drain=True)
        return rows


async def describe(url: str, bounds: QueryBounds) -> Rows:
    async with _session(url, bounds) as connection:
        rows = await _stream(connection, _SCHEMA, (), max_rows=bounds.max_rows, drain=False)
    return replace(rows, columns=("table", "name", "definition"))


async def explain(url: str, sql: str, bounds: QueryBounds) -> Rows:
    """The server's plan of a statement, without running it."""
    check(sql, read_only=True)
    async with _session(url, bounds) as connection:
        return await _stream(connection, f"EXPLAIN (ANALYZE FALSE) {sql}", (), max_rows=bounds.max_rows, drain=False)


def check(sql: str, *, read_only: bool) -> frozenset[str]:
    """Refuse what the lists above name; returns the names of the called functions. Raises ToolFailure."""
    if "\0" in sql:
        raise ToolFailure("the statement contains a NUL character")
    lexemes = list(tokens(sql))
    if any(token.kind is TokenKind.UNCLOSED for token in lexemes):
        raise ToolFailure("the statement is empty or cannot be read: a quote or a comment in it is not closed")
    # The first keyword may follow comments and parentheses.
    word = next((token.text for token in lexemes if token != _OPENING), "")
    if not word:
        raise ToolFailure("the statement is empty")
    if word in REFUSED_STATEMENTS or (read_only and word in REFUSED_READING):
        raise ToolRefusal(
            f"{word.upper()} is refused here; each call is one statement in a transaction of its own: "
            "SELECT, or with read_only=false INSERT, UPDATE, DELETE and DDL"
        )
    # CREATE and ALTER can give a function another name.
    everywhere = word in ("create", "alter")
    for name in _names(lexemes, everywhere=everywhere, depth=0):
        if REFUSED_FUNCTIONS.fullmatch(name):
            raise ToolRefusal(f"{name} is refused here: it reaches the server's files, sessions or other databases")
    return frozenset(_calls(lexemes))


def _calls(words: Sequence[Token]) -> Iterator[str]:
    return (token.text for token, after in pairwise(words) if token.kind is TokenKind.NAME and after == _OPENING)


def _names(lexemes: Sequence[Token], *, everywhere: bool, depth: int) -> Iterator[str]:
    """The functions that a statement calls, also in strings that may be statements or bodies."""
    yield from ((token.text for token in lexemes if token.kind is TokenKind.NAME) if everywhere else _calls(lexemes))
    for token in lexemes:
        if token.kind is TokenKind.STRING and depth < _MAX_DEPTH:
            yield from _names(list(tokens(token.text)), everywhere=False, depth=depth + 1)


async def _check_volatile(connection: AsyncConnection[TupleRow], called: Collection[str]) -> None:
    """Refuse functions of the server or of its extensions that its catalogue calls volatile."""
    unlisted = sorted(name for name in called if not READING_FUNCTIONS.fullmatch(name))
    if not unlisted:
        return
    volatile = (await _stream(connection, _VOLATILE, (json.dumps(unlisted),), max_rows=1, drain=True)).rows[0][0]
    if volatile:
        raise ToolRefusal(
            f"{volatile} is refused here where only reading is allowed: the server does not call it free of effects"
        )


@asynccontextmanager
async def _session(url: str, bounds: QueryBounds) -> AsyncGenerator[AsyncConnection[TupleRow]]:
    """A new connection inside a transaction, rolled back without a COMMIT."""
    try:
        import psycopg
    except ImportError:
        raise ToolFailure("PostgreSQL needs its driver: pip install 'swe-ai-fleet[db]'") from None
    try:
        connection = await psycopg.AsyncConnection.connect(
            url, autocommit=True, prepare_threshold=None, connect_timeout=_CONNECT_SECONDS
        )
    except psycopg.Error as error:
        # The driver's message is not shown: it names host, port and user, and quotes malformed URLs.
        reason = "its credentials are refused" if "authentication" in str(error) else type(error).__name__
        raise ToolFailure(f"the connection to PostgreSQL cannot be opened: {reason}") from None
    try:
        mode = "READ ONLY" if bounds.read_only else "READ WRITE"
        await _stream(connection, f"BEGIN {mode}", (), max_rows=1, drain=True)
        limit = str(max(1, round(bounds.timeout_seconds * 1000)))
        limits = (
            ("statement_timeout", limit),
            ("lock_timeout", limit),
            ("idle_in_transaction_session_timeout", limit),
            ("default_transaction_read_only", "on" if bounds.read_only else "off"),
            ("standard_conforming_strings", "on"),
        )
        settings = ", ".join(f"set_config(${2 * at + 1}, ${2 * at + 2}, false)" for at in range(len(limits)))
        await _stream(connection, f"SELECT {settings}", tuple(chain.from_iterable(limits)), max_rows=1, drain=True)
        privileged_roles = (await _stream(connection, _PRIVILEGED_ROLES, (), max_rows=1, drain=True)).rows[0][0]
        if privileged_roles:
            raise ToolRefusal(
                f"the role of this connection is too powerful for an agent: it is or may become {privileged_roles}; "
                "configure a role that is no superuser and has no access to the server's files and programs"
            )
        yield connection
    finally:
        await connection.close()


async def _stream(
    connection: AsyncConnection[TupleRow], sql: str, params: Sequence[Value], *, max_rows: int, drain: bool
) -> Rows:
    """Run one statement by the extended protocol (which takes no second one), row by row, with values as text.

    After the last row that is kept, a statement that may write runs to its end (`drain`); a read is cancelled, and its
    connection must be closed.
    """
    from psycopg import Error, generators
    from psycopg.pq import ExecStatus

    pgconn = connection.pgconn
    collector, columns, status, failure = Collector((), max_rows), (), "", None
    facts: dict[str, object] = {}
    try:
        pgconn.send_query_params(sql.encode(), [_text(value) for value in params])
        pgconn.set_single_row_mode()
        await connection.wait(generators.send(pgconn))
        while (reply := await connection.wait(generators.fetch(pgconn))) is not None:
            if reply.status in (ExecStatus.SINGLE_TUPLE, ExecStatus.TUPLES_OK) and not columns:
                columns = tuple((reply.fname(at) or b"?").decode("utf-8", "replace") for at in range(reply.nfields))
                collector = Collector(columns, max_rows)
            if reply.status == ExecStatus.SINGLE_TUPLE:
                has_room = collector.add([reply.get_value(0, at) for at in range(reply.nfields)])
                if not has_room and not drain:
                    await connection.cancel_safe(timeout=_CANCEL_SECONDS)
                    break
            elif reply.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
                status = (reply.command_status or b"").decode()
                if reply.command_tuples is not None and not columns:
                    facts["affected"] = reply.command_tuples
            else:
                failure = failure or _failure(reply)
                if reply.status != ExecStatus.FATAL_ERROR:
                    break
    except Error as error:
        raise ToolFailure(f"PostgreSQL: the connection failed: {type(error).__name__}") from None
    if failure:
        raise failure
    return collector.rows("" if columns else status, facts)


def _text(value: Value) -> bytes | None:
    if value is None or isinstance(value, str):
        return value if value is None else value.encode()
    return str(value).lower().encode() if isinstance(value, bool) else repr(value).encode()


def _failure(reply: PGresult) -> ToolFailure | TimeoutError:
    from psycopg.pq import DiagnosticField

    def text_of(field: DiagnosticField) -> str:
        return (reply.error_field(field) or b"").decode("utf-8", "replace")

    state = text_of(DiagnosticField.SQLSTATE)
    if state == _QUERY_CANCELED:
        return TimeoutError()
    parts = [text_of(DiagnosticField.MESSAGE_PRIMARY) or f"unexpected reply {reply.status}"]
    if position := text_of(DiagnosticField.STATEMENT_POSITION):
        parts.append(f"at character {position}")
    parts += [
        text for field in (DiagnosticField.MESSAGE_DETAIL, DiagnosticField.MESSAGE_HINT) if (text := text_of(field))
    ]
    kind = ToolRefusal if state in (_READ_ONLY_TRANSACTION, _INSUFFICIENT_PRIVILEGE) else ToolFailure
    return kind(f"PostgreSQL: {'; '.join(parts)}")

"""`ChatSession`: a chat as a library call, without a fleet.

Chats are stored in files: one for each session, replaced as a whole, one writer at a time.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import time
import uuid
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Self

from swe_ai_fleet.agents.function_calling.setup import Setup, Tool
from swe_ai_fleet.codec import from_json
from swe_ai_fleet.conversations.pages import Channel
from swe_ai_fleet.domain.errors import Fenced, Unavailable
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.extensions.chat.answering import Answering, ChatAnswer
from swe_ai_fleet.extensions.chat.chat import Chat, answering_chats
from swe_ai_fleet.extensions.chat.drive import TenantChats
from swe_ai_fleet.extensions.chat.opening import chat_rules, chat_tools, mcp_tools
from swe_ai_fleet.extensions.chat.progress import AnswerStep
from swe_ai_fleet.extensions.chat.reply_run import SYSTEM_PROMPT
from swe_ai_fleet.extensions.chat.session import (
    ChatMessage,
    ChatState,
    KeptSession,
    check_namespaces,
    check_session_id,
    encoded,
    newest_first,
)
from swe_ai_fleet.ports import Memories
from swe_ai_fleet.runtime.execution_tools import FleetView, TaskStarter
from swe_ai_fleet.runtime.knowledge import open_library_memory
from swe_ai_fleet.runtime.own_executions import own_executions
from swe_ai_fleet.runtime.private_files import write_private
from swe_ai_fleet.runtime.run_deps import NamedModel
from swe_ai_fleet.settings import Settings

_DIRECTORY = "chats"
_RETRY_WAITS = (1.0, 3.0)


class ChatFiles:
    """A `ChatStore` in a directory that only its owner can read; several processes may use it at once.

    Args:
        directory: Created with the first session.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def get(self, tenant: str, session_id: str) -> KeptSession | None:
        """The last revision of a session; None for an unknown session. Raises Unavailable."""
        return await asyncio.to_thread(self._get, tenant, session_id)

    async def put(self, session: ChatState, *, revision: int) -> int:
        """Replace a revision (0: none is stored); returns the new one. Raises Fenced (it has changed), Unavailable."""
        return await asyncio.to_thread(self._put, session, revision)

    async def delete(self, tenant: str, session_id: str) -> None:
        """Delete a session, if it exists. Raises Unavailable."""
        await asyncio.to_thread(self._delete, tenant, session_id)

    async def listed(self, tenant: str) -> tuple[ChatState, ...]:
        """The cards of a tenant's sessions, the most recently used first. Raises Unavailable."""
        return await asyncio.to_thread(self._listed, tenant)

    def _get(self, tenant: str, session_id: str) -> KeptSession | None:
        with self._locked():
            return self._read(self._path(tenant, session_id))

    def _put(self, session: ChatState, revision: int) -> int:
        path = self._path(session.tenant, session.session_id)
        with self._locked():
            stored = self._read(path)
            if (stored.revision if stored else 0) != revision:
                raise Fenced(f"the session {session.session_id} was changed by another process")
            # Revisions of a deleted session are not used again: a process that still has it must not replace this one.
            next_revision = max(time.time_ns(), revision + 1)
            write_private(path, f"{json.dumps({'revision': next_revision})}\n{encoded(session).decode()}")
        return next_revision

    def _delete(self, tenant: str, session_id: str) -> None:
        with self._locked():
            self._path(tenant, session_id).unlink(missing_ok=True)

    def _listed(self, tenant: str) -> tuple[ChatState, ...]:
        with self._locked():
            chats = [self._read(path) for path in sorted(self._directory.glob("*.chat"))]
        return newest_first(kept.session.card for kept in chats if kept is not None and kept.session.tenant == tenant)

    def _read(self, path: Path) -> KeptSession | None:
        try:
            head, _, body = path.read_bytes().partition(b"\n")
        except FileNotFoundError:
            return None
        try:
            return KeptSession(session=from_json(ChatState, body), revision=int(json.loads(head)["revision"]))
        except (ValueError, KeyError, TypeError) as fault:
            raise Unavailable(f"the file {path.name} is no longer a session: {fault}"[:300]) from fault

    @contextmanager
    def _locked(self) -> Generator[None]:
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with (self._directory / ".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        except OSError as fault:
            raise Unavailable(f"the chats cannot be stored: {fault}", field="home") from fault

    def _path(self, tenant: str, session_id: str) -> Path:
        # File systems may ignore the case of names.
        digest = hashlib.sha256(f"{tenant}\x1f{session_id}".encode()).hexdigest()[:40]
        return self._directory / f"{digest}.chat"


class ChatSession:
    """One chat, stored in a file under `home`: a `ChatSession` with the same id, in any process, continues it.

    As an async context manager it keeps its connections from one message to the next.

    Args:
        model_name: The model; `vllm/`, `fireworks/`, `ollama/`, `gemini/` or `openai/` before it picks the provider.
        session_id: The id, of letters, digits, `_` and `-`; empty: a new one.
        tools: Functions, BaseTools, toolkits, names of registered tools; None: the built-in ones (calculator, Python
            in a sandbox, the web as far as settings name it) and those of the settings' MCP servers that only read.
        settings: All other settings; None: those of the environment.
        memories: The caller's own long-term memory, such as a fleet's; None: the file under `home`.
        namespaces: The namespaces of long-term memory (`fleet`, `agent:<id>`, `repository:<name>`); new memories go to
            the first. None given: no long-term memory.
        model_params: base_url, api_key, timeout (seconds), temperature, seed, max_tokens, as on FunctionCallingAgent.
        files: The directory that `file_reader` reads, if `tools` is None; None: there is no such tool.
        channel: The format of answers: `plain`, `markdown` or `telegram`.
        fleet: Shows executions; None: the chat cannot see any.
        starter: Starts tasks that the person confirmed; None: the chat cannot start any.
        system_prompt: The system prompt; `{tools}` or `{tool_docs}` in it is replaced by the documentation of the
            tools.

    Raises:
        InvalidRequest: A malformed session id or namespace.
        ValueError: An unknown model parameter, an unknown channel, two tools of one name.
    """

    def __init__(
        self,
        model_name: str = "",
        session_id: str = "",
        tools: Sequence[Tool] | None = None,
        settings: Settings | None = None,
        memories: Memories | None = None,
        *,
        namespaces: Sequence[str] = (),
        model_params: Mapping[str, object] | None = None,
        files: str | Path | None = None,
        channel: str = Channel.MARKDOWN,
        fleet: FleetView | None = None,
        starter: TaskStarter | None = None,
        system_prompt: str = SYSTEM_PROMPT,
    ) -> None:
        self.session_id = check_session_id(session_id or uuid.uuid4().hex)
        self._settings = settings or Settings()
        self._access = NamedModel(model_name, model_params, None, self._settings)
        self._mcp = tools is None
        self._tools = (
            tuple(tools) if tools is not None else chat_tools(self._settings, files=Path(files) if files else None)
        )
        self._memories = memories
        self._namespaces = check_namespaces(namespaces) or ()
        self._channel = Channel(channel)
        self._fleet = fleet
        self._starter = starter
        self._system_prompt = system_prompt
        self._store = ChatFiles(self._settings.home / _DIRECTORY)
        self._held = AsyncExitStack()
        self._answering: Answering | None = None

    async def __aenter__(self) -> Self:
        self._answering = await self._held.enter_async_context(self._opened())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._answering = None
        await self._held.aclose()

    async def send(self, text: str, *, channel: str | None = None) -> ChatAnswer:
        """The answer to a message. Raises as `stream` does."""
        async with aclosing(self.stream(text, channel=channel)) as updates:
            async for update in updates:
                if isinstance(update, ChatAnswer):
                    return update
        raise AssertionError("a message that is not answered raises")

    async def stream(self, text: str, *, channel: str | None = None) -> AsyncGenerator[AnswerStep | ChatAnswer, None]:
        """The progress of the answer (calls, results, text), and the answer as the last item.

        Closing the stream early cancels the message, which is then not part of the session.

        Args:
            text: The person's message.
            channel: The format of this answer; None: that of the session.

        Raises:
            InvalidRequest: Naming the field.
            PreconditionFailed: Another message of the session is being answered.
            Unavailable: The files cannot be read or written.
        """
        async with self._open() as chat:
            message = ChatMessage(
                session_id=self.session_id,
                text=text,
                channel=Channel(channel or self._channel),
                namespaces=self._namespaces or None,
            )
            async with aclosing(chat.stream(message)) as answers:
                async for answer in answers:
                    yield answer

    async def session(self) -> ChatState | None:
        """The current state; None before the first message. Raises Unavailable."""
        kept = await self._store.get(DEFAULT_TENANT, self.session_id)
        return kept.session if kept is not None else None

    async def end(self) -> None:
        """Delete the chat; its long-term memories stay. Raises Unavailable."""
        await self._store.delete(DEFAULT_TENANT, self.session_id)

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[Chat]:
        async with AsyncExitStack() as stack:
            answering = self._answering or await stack.enter_async_context(self._opened())
            # Nobody reads the events of a message after its answer, so each message has a log of its own.
            executions = await stack.enter_async_context(own_executions(self._settings, answering.model))
            chats = answering_chats(executions, lambda _: TenantChats(answering=answering, store=self._store))
            yield (await stack.enter_async_context(chats))(DEFAULT_TENANT)

    @asynccontextmanager
    async def _opened(self) -> AsyncGenerator[Answering]:
        async with AsyncExitStack() as stack:
            memories = self._memories
            if memories is None and self._namespaces:
                memories = await stack.enter_async_context(
                    open_library_memory(self._settings, self._access.mask, field="namespaces")
                )
            model = await stack.enter_async_context(self._access.open())
            mcp = await stack.enter_async_context(mcp_tools(self._settings)) if self._mcp else ()
            waits = self._access.waits(_RETRY_WAITS)
            yield Answering(
                model=model,
                memories=memories,
                fleet=self._fleet,
                starter=self._starter,
                rules=chat_rules(self._settings, retry_waits=waits),
                setup=Setup(
                    parallel=self._access.parallel_calls,
                    prices=self._access.prices,
                    model_name=self._access.name,
                    sampling=self._access.sampling,
                ),
                secrets=self._access.mask,
                system_prompt=self._system_prompt,
            ).offering((*self._tools, *mcp))

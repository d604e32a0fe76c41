"""`FunctionCallingAgent` and `FunctionCallingClient`: a model, chosen by name, that calls a program's functions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Self

from swe_ai_fleet.agents.function_calling.caller import SYSTEM_PROMPT, FunctionCaller
from swe_ai_fleet.agents.function_calling.conversation import ToolConversation, converse
from swe_ai_fleet.agents.function_calling.setup import (
    FUNCTION_CALLING,
    AgentResponse,
    AgentTask,
    Setup,
    Tool,
    gathered,
)
from swe_ai_fleet.agents.model_middleware import RETRY_WAITS
from swe_ai_fleet.domain.budget import Limits
from swe_ai_fleet.runtime.default_tools import library_registry
from swe_ai_fleet.runtime.run_deps import NamedModel, chat_limits
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.tools.http_transport import HttpPolicy


class _Opened:
    """An optional context: inside it, all runs share one client of the model."""

    _access: NamedModel

    async def __aenter__(self) -> Self:
        await self._access.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._access.__aexit__(*exc)


class FunctionCallingAgent(_Opened):
    """An agent that solves tasks by calling functions.

    As an async context manager it keeps its connection to the model server from one run to the next.

    Args:
        model_name: The model; `vllm/`, `fireworks/`, `ollama/`, `gemini/` or `openai/` before it picks the provider.
        tools: Plain functions, sync or async; BaseTools; toolkits (`HttpTool()`, an open `McpTool`); names of
            registered tools, or their definitions as the registry gives them. A plain function counts as one that only
            reads; `FunctionTool(function, read_only=False)` says that it has an effect.
        system_prompt: The system message; `{tools}` in it is replaced by the documentation of the tools.
        loop_detection_threshold: How many equal calls in a row count as a loop.
        model_params: base_url (or api_base), api_key, timeout (seconds), num_retries (so many waits, the first of
            `retry_waits`, each twice as long as the last); temperature, top_p, seed, max_tokens (of a reply), stop (a
            text or several); extra_body, further fields of each request.
        max_tool_result_chars: Results are cut to so many characters in the history.
        one_line_doc: Whether the model reads only the first line of a function's docstring, not all of it.
        tool_timeout: Seconds a call may take if its tool has no limit of its own.
        litellm_params: Another name of `model_params`.
        limits: The budget of one run, unless `run` overrides it; `max_cost` uses the prices in the settings.
        loop_by_name: Whether calls with the same name are equal, whatever their arguments.
        max_tool_errors: How many failed calls in a row end a run.
        max_reminders: How many replies in a row without a call are answered by a reminder to call a tool.
        parallel: Whether the calls of one reply run concurrently, except those that lock the same resource;
                None: the setting.
        stream: Whether the model's text is streamed, as `log` responses whose `event` is `delta`.
        retry_waits: Seconds before each retry of a model call. If the settings name several servers, or limits for the
            whole fleet, those decide about retries instead.
        images: Whether the model accepts pictures; None: as its server reports.
        pages: The servers from which a task's files may be loaded; without it, all public ones.
        settings: Everything else; from the environment when not given.

    Raises:
        ValueError: An unknown model parameter, two tools of one name, or a `max_cost` where no model has a price.
        InvalidRequest, NotFound: A tool has no valid schema; no tool is registered under a name.
    """

    def __init__(
        self,
        model_name: str = "",
        tools: Sequence[Tool] | None = None,
        system_prompt: str = SYSTEM_PROMPT,
        loop_detection_threshold: int = 3,
        model_params: Mapping[str, object] | None = None,
        max_tool_result_chars: int = 3000,
        one_line_doc: bool = True,
        tool_timeout: float = 30.0,
        *,
        litellm_params: Mapping[str, object] | None = None,
        limits: Limits = FUNCTION_CALLING,
        loop_by_name: bool = False,
        max_tool_errors: int = 3,
        max_reminders: int = 0,
        parallel: bool | None = None,
        stream: bool = False,
        retry_waits: Sequence[float] = RETRY_WAITS,
        images: bool | None = None,
        pages: HttpPolicy | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._access = NamedModel(model_name, model_params, litellm_params, settings)
        registry = library_registry(settings)
        all_tools, kits, idle = gathered(
            tools or (), registry=registry, one_line_doc=one_line_doc, tool_timeout=tool_timeout
        )
        setup = Setup(
            tools=all_tools,
            toolkits=kits,
            idle=idle,
            limits=limits,
            prices=self._access.prices,
            model_name=self._access.name,
            loop_threshold=loop_detection_threshold,
            loop_by_name=loop_by_name,
            max_tool_result_chars=max_tool_result_chars,
            tool_timeout=tool_timeout,
            max_tool_errors=max_tool_errors,
            max_reminders=max_reminders,
            bare_answers=False,
            parallel=self._access.parallel_calls if parallel is None else parallel,
            stream=stream,
            retry_waits=self._access.waits(retry_waits),
            sampling=self._access.sampling,
            images=images,
            mask=self._access.mask,
            pages=pages or HttpPolicy(),
        )
        self._caller = FunctionCaller(setup, system_prompt=system_prompt)

    @classmethod
    def chat_profile(cls, settings: Settings | None = None) -> Limits:
        """The limits of an interactive agent, from the settings; by default 5 iterations, 20 calls, 60 seconds."""
        return chat_limits(settings or Settings())

    @property
    def task(self) -> AgentTask | None:
        """The task that was started last: its id, description, result and steps_taken."""
        return self._caller.task

    @property
    def messages(self) -> list[dict[str, object]]:
        """The conversation of the run that ended last, as a `chat_history` for another one."""
        return self._caller.messages

    async def run(
        self,
        task: str,
        files: Sequence[str | Path] | None = None,
        max_iterations: int | None = None,
        refine_final_answer: bool = True,
        use_planning: bool = True,
        recurrent_mode: bool = False,
        loop_threshold: int | None = None,
        chat_history: Sequence[object] | None = None,
    ) -> AsyncGenerator[AgentResponse, None]:
        """Solve a task, yielding a response for each step; closing the iterator early ends the run and its tools.

        Exactly one response, the last, is of type `final`. Its metadata describe the end: `success`, `stop_reason`
        (`final_answer`, `no_tool_calls`, or the limit or fault that ended it), `error`, `iterations`, `usage`.

        Args:
            task: The instruction.
            files: Files for the task: paths, URLs of pages, URLs of pictures.
            max_iterations: How many of the model's replies are executed; None: as in the limits (10).
            refine_final_answer: Whether a model that stops without `final_answer`, or at a limit, is asked once for a
                clean answer. Without one, the last text is the answer, else the result of the last successful call
                (`success` is false then).
            use_planning: Whether the model writes a plan first.
            recurrent_mode: Whether the previous task and its result precede this one in the prompt.
            loop_threshold: As `loop_detection_threshold`, for this run.
            chat_history: A conversation to continue, as OpenAI's messages; neither kept nor changed.

        Raises:
            ValueError: An empty task, `files` that is no list, a malformed history, or one together with
                `recurrent_mode`; a `max_cost` without a price for this model.
        """
        async with self._access.open() as model:
            responses = self._caller.run(
                model,
                task,
                files,
                max_iterations=max_iterations,
                refine_final_answer=refine_final_answer,
                use_planning=use_planning,
                recurrent_mode=recurrent_mode,
                loop_threshold=loop_threshold,
                chat_history=chat_history,
            )
            async with aclosing(responses):
                async for response in responses:
                    yield response


class FunctionCallingClient(_Opened):
    """A model that answers conversations by calling functions.

    Args:
        model_name, model_params, litellm_params, settings: As on `FunctionCallingAgent`.
        max_tool_result_chars, tool_timeout, one_line_doc, parallel, retry_waits, limits: As there.

    Raises:
        ValueError: An unknown model parameter, or a `max_cost` where no model has a price.
    """

    def __init__(
        self,
        model_name: str = "",
        model_params: Mapping[str, object] | None = None,
        *,
        litellm_params: Mapping[str, object] | None = None,
        max_tool_result_chars: int = 3000,
        tool_timeout: float = 30.0,
        one_line_doc: bool = True,
        parallel: bool | None = None,
        retry_waits: Sequence[float] = RETRY_WAITS,
        limits: Limits = FUNCTION_CALLING,
        settings: Settings | None = None,
    ) -> None:
        self._access = NamedModel(model_name, model_params, litellm_params, settings)
        self._one_line_doc = one_line_doc
        self._registry = library_registry(settings)
        self._setup = Setup(
            limits=limits,
            prices=self._access.prices,
            model_name=self._access.name,
            max_tool_result_chars=max_tool_result_chars,
            tool_timeout=tool_timeout,
            parallel=self._access.parallel_calls if parallel is None else parallel,
            retry_waits=self._access.waits(retry_waits),
            sampling=self._access.sampling,
            mask=self._access.mask,
        )

    async def call_with_tools(
        self,
        messages: Sequence[object],
        system_prompt: str = "",
        tools: Sequence[Tool] | None = None,
        max_turns: int = 5,
    ) -> ToolConversation:
        """Answer a conversation; the model's first reply without a call is the answer.

        Args:
            messages: The conversation as OpenAI's messages; neither kept nor changed.
            system_prompt: The system message.
            tools: As on `FunctionCallingAgent`.
            max_turns: How many replies with calls are executed; then one more reply, without tools, is the answer.

        Raises:
            ValueError: The messages are no conversation, `max_turns` is below 1, or a `max_cost` is set and this model
                has no price.
        """
        all_tools, kits, idle = gathered(
            tools or (),
            registry=self._registry,
            one_line_doc=self._one_line_doc,
            tool_timeout=self._setup.tool_timeout,
        )
        setup = replace(self._setup, tools=all_tools, toolkits=kits, idle=idle)
        async with self._access.open() as model:
            return await converse(model, setup, messages, system_prompt, max_turns=max_turns)

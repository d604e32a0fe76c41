"""A model by its name and parameters, and its client."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Self, TypeVar, cast, get_origin

from swe_ai_fleet.domain.json_values import items
from swe_ai_fleet.domain.message import Sampling
from swe_ai_fleet.ports import ChatModel
from swe_ai_fleet.runtime.equipment import model_prices
from swe_ai_fleet.runtime.factories import model_client, open_model, other_model
from swe_ai_fleet.runtime.model_servers import ModelServers, model_endpoints
from swe_ai_fleet.runtime.tool_services import secret_mask
from swe_ai_fleet.settings import Settings, listed

T = TypeVar("T")
KNOWN = "base_url, api_key, timeout, num_retries, temperature, top_p, seed, max_tokens, stop, extra_body"
"""The parameters of a model; those of sampling go out with each request, `extra_body` as further fields of it."""
_OURS = frozenset(("model", "messages", "tools", "tool_choice", "parallel_tool_calls", "stream", "response_format"))
_LONGEST_WAIT = 60.0


class NamedModel:
    """How the model is reached; entered, one client of it serves all runs, otherwise each opens its own.

    Args:
        model_name: `<provider>/<model>` or a model; empty: what settings say.
        model_params: Those of `KNOWN`; `api_base` is `base_url`, too.
        litellm_params: Another name of `model_params`.
        settings: For what is not given; from the environment without them.

    Raises:
        ValueError: An unknown parameter, one of a wrong type, or both names for them.
        InvalidRequest: Settings give a malformed price.
    """

    def __init__(
        self,
        model_name: str,
        model_params: Mapping[str, object] | None,
        litellm_params: Mapping[str, object] | None,
        settings: Settings | None,
    ) -> None:
        if model_params is not None and litellm_params is not None:
            raise ValueError("model_params and litellm_params are the same; give one of them")
        given = dict(model_params if model_params is not None else litellm_params or {})
        chosen = settings or Settings()
        url, key = _take(given, str, "base_url", "api_base"), _take(given, str, "api_key")
        timeout = _take(given, float, "timeout", "request_timeout")
        if timeout is not None and timeout <= 0:
            raise ValueError("the model parameter timeout must be above 0")
        other = other_model(chosen, model=model_name or "", url=url or "", api_key=key or "")
        self._settings = other.model_copy(update={"model_timeout_seconds": timeout or chosen.model_timeout_seconds})
        self.parallel_calls = chosen.parallel_calls
        limited = bool(chosen.model_max_in_flight or chosen.model_tokens_per_minute)
        servers = listed(self._settings.model_url)
        self.pooled = limited or len(servers) > 1 or bool(ModelServers(settings=self._settings).source)
        """Whether a pool is asked, which tries again by itself."""
        self._retries = _take(given, int, "num_retries")
        if self._retries is not None and (self._retries < 0 or self.pooled):
            why = (
                "is below 0" if self._retries < 0 else "cannot be set with several servers or limits; the pool retries"
            )
            raise ValueError(f"the model parameter num_retries {why}")
        stop = given.pop("stop", None)
        stops = [stop] if isinstance(stop, str) else items(stop)
        if not all(isinstance(text, str) for text in stops) or (stop and not stops):
            raise ValueError(f"the model parameter stop is a {type(stop).__name__}, not a text or a list of texts")
        extra = _take(given, dict[str, object], "extra_body") or {}
        if ours := _OURS & extra.keys():
            raise ValueError(f"extra_body may not hold {', '.join(sorted(ours))}, which each request sets itself")
        self.sampling = Sampling(
            temperature=_take(given, float, "temperature"),
            top_p=_take(given, float, "top_p"),
            seed=_take(given, int, "seed"),
            max_tokens=_take(given, int, "max_tokens", "max_completion_tokens"),
            stop=tuple(map(str, stops)),
            extra=extra,
        )
        if given:
            raise ValueError(f"unknown model parameters: {', '.join(map(str, given))}; known are: {KNOWN}")
        self.mask = secret_mask(self._settings)
        self.name = self._settings.model
        self.prices = model_prices(self._settings)
        self._held = AsyncExitStack()
        self._model: ChatModel | None = None

    def waits(self, usual: Sequence[float]) -> tuple[float, ...]:
        """Seconds before each further try of a call: as many as `num_retries` says, else the usual ones."""
        if self.pooled or self._retries is None:
            return () if self.pooled else tuple(usual)
        first = usual[0] if usual else 0.0
        return tuple(min(first * 2**number, _LONGEST_WAIT) for number in range(self._retries))

    async def __aenter__(self) -> Self:
        self._model = await self._held.enter_async_context(self._make())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._model = None
        await self._held.aclose()

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[ChatModel]:
        """The model, for one run."""
        if self._model is not None:
            yield self._model
            return
        async with self._make() as model:
            yield model

    def _make(self) -> AbstractAsyncContextManager[ChatModel]:
        """One server is spoken to directly; several, or the fleet's limits on calls, are a pool's business."""
        chosen = self._settings
        if self.pooled:
            return open_model(chosen)
        (endpoint,) = model_endpoints(chosen)
        return model_client(endpoint, chosen)


def _take(given: dict[str, object], kind: type[T], *names: str) -> T | None:
    """The value of a parameter under whichever of its names, taken out. Raises ValueError where it has another type."""
    values_given = [value for name in names if (value := given.pop(name, None)) is not None]
    if not values_given:
        return None
    value = float(values_given[0]) if kind is float and type(values_given[0]) is int else values_given[0]
    if not isinstance(value, get_origin(kind) or kind) or isinstance(value, bool):
        raise ValueError(f"the model parameter {names[0]} is a {type(value).__name__}, not a {kind.__name__}")
    return cast("T", value)

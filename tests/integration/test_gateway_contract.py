"""Requests that nobody thought of: what schemathesis makes of the API's document, against the whole fleet."""

from __future__ import annotations

import asyncio
import random
import warnings
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.specs.openapi import checks

from services.gateway.access.credentials import CredentialChecker
from services.gateway.main import gateway_app, serve_http
from services.gateway.rest.table import OPERATIONS
from services.gateway.upstream import open_upstream
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue
from tests.conftest import FleetUnderTest
from tests.fuzz.test_grpc_surface import BODIES as KNOWN
from tests.fuzz.test_grpc_surface import COSTLY, PINNED
from tests.gateway_house import ready
from tests.served import SERVED

BODIES = KNOWN | {
    "SubmitTask": {"deliberate": KNOWN["Deliberate"]},
    # What is made here is nobody else's.
    "CreateCouncil": {"role": "NOBODY"},
}
"""Bodies that get past the first checks; what is generated goes on top of them."""
PLACES = {"story_id": "hostile", "session_id": "hostile", "name": "fix-issue", "role": "NOBODY"}
CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
PROMISED = (501, 503, 504)

_UNSERVED = {one.id for one in OPERATIONS if one.method not in SERVED}


@dataclass(kw_only=True)
class Walk:
    """One walk over every operation of the document."""

    url: str
    token: str
    examples: int
    seen: dict[str, Counter[int]] = field(default_factory=dict[str, Counter[int]])
    wrong: list[str] = field(default_factory=list[str])

    def run(self) -> None:
        """Ask everything, `examples` times rightly and as often wrongly. Blocks."""
        headers = {"authorization": f"Bearer {self.token}"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            document = schemathesis.openapi.from_url(f"{self.url}/api/openapi.json", headers=headers)
            for found in document.get_all_operations():
                operation: Any = found.ok()
                if operation.definition.raw["operationId"] in _UNSERVED:
                    continue
                for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                    self._ask(operation, mode, headers)

    def _ask(self, operation: Any, mode: GenerationMode, headers: dict[str, str]) -> None:
        name = operation.definition.raw["operationId"]
        seen, dice = self.seen.setdefault(name, Counter()), random.Random(f"{name} {mode}")
        examples = min(self.examples, 2) if name in COSTLY else self.examples

        @settings(
            max_examples=examples,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def asking(case: Any) -> None:
            _tame(name, case, dice)
            answer = case.call(base_url=self.url, headers=headers, timeout=30)
            seen[answer.status_code] += 1
            said = f"{name} {answer.status_code}: {answer.text[:200]} to {case.body!r:.300} {case.query}"
            if answer.status_code >= 500 and answer.status_code not in PROMISED:
                self.wrong.append(said)
            try:
                case.validate_response(answer, checks=CHECKS)
            except AssertionError as fault:
                self.wrong.append(f"{said}: {fault!s:.400}")
            except BaseExceptionGroup as faults:
                self.wrong.append(f"{said}: {[str(one)[:200] for one in faults.exceptions]}")

        try:
            asking()
        except Unsatisfiable:
            # Where nothing is asked with it, nothing can be asked wrongly.
            assert mode is GenerationMode.NEGATIVE, name


def _tame(name: str, case: Any, dice: random.Random) -> None:
    """Lead a request past the first checks, and away from what would start or forget something."""
    body, places = case.body, cast("dict[str, Any]", case.path_parameters or {})
    if isinstance(body, dict):
        base = {key: value for key, value in BODIES.get(name, {}).items() if key not in places}
        given_body = cast("dict[str, Any]", body)
        kept = sorted(given_body)
        # Mostly a valid body with one thing changed: others do not get far.
        chosen = kept if dice.random() < 0.2 else dice.sample(kept, min(len(kept), dice.choice((0, 1, 1, 2))))
        pinned = PINNED.get(name, frozenset[str]())
        case.body = base | {key: given_body[key] for key in chosen if key not in pinned}
    for place, value in PLACES.items():
        if place in places and (place == "role" or dice.random() < 0.6):
            places[place] = value


@pytest.fixture(scope="module")
async def gateway(fleet: FleetUnderTest) -> AsyncIterator[str]:
    """A gateway to the fleet that takes many requests from one client."""
    generous = fleet.settings.model_copy(update={"http_requests_per_minute": 10_000_000})
    running = fleet.running
    async with open_upstream(running.address, running.context) as upstream:
        app = gateway_app(generous, upstream, CredentialChecker(running.token), MemoryKeyValue(), ready)
        async with serve_http(app, "127.0.0.1:0") as url:
            yield url


@pytest.mark.slow  # quick: integration/test_hostile_requests.py
@pytest.mark.parametrize("examples", [2, pytest.param(60, marks=[pytest.mark.slow, pytest.mark.timeout(1_200)])])
async def test_no_request_meets_a_fault_or_an_answer_that_was_not_promised(
    gateway: str, fleet: FleetUnderTest, examples: int
) -> None:
    walk = Walk(url=gateway, token=fleet.running.token, examples=examples)
    await asyncio.to_thread(walk.run)
    assert not walk.wrong, "\n".join(walk.wrong[:10])
    assert {one.id for one in OPERATIONS} <= walk.seen.keys() | _UNSERVED
    # It got past the auth middleware.
    assert sum(200 in seen or 201 in seen for seen in walk.seen.values()) > 15

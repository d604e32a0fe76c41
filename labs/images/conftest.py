"""One engine, its images and one stack for the whole run; without FLEET_TEST_IMAGES nothing here is collected."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import pytest

from labs.images.base import NoBase
from labs.images.engine_images import build_images
from labs.images.stack import Stack, running_stack
from tests.docker_engine import NoEngine, TestEngine, docker_engine

collect_ignore_glob = [] if os.environ.get("FLEET_TEST_IMAGES") else ["test_*"]


@pytest.fixture(scope="session")
def engine() -> Iterator[TestEngine]:
    try:
        with docker_engine(storage="overlay2") as running, pytest.MonkeyPatch.context() as environment:
            environment.setenv("DOCKER_HOST", running.host)
            # Its own cleaner is an image that would have to be pulled; what is started here is stopped here.
            environment.setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
            yield running
    except NoEngine as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def images(engine: TestEngine, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    try:
        return build_images(engine.host, tmp_path_factory.mktemp("wheels"))
    except (NoEngine, NoBase) as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
async def stack(images: dict[str, str]) -> AsyncIterator[Stack]:
    async with running_stack(images) as running:
        yield running

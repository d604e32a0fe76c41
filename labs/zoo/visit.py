"""One project from its download to its row."""

from __future__ import annotations

import asyncio
import shutil
import time
from dataclasses import replace
from pathlib import Path

from labs.zoo.catalogue import Project
from labs.zoo.commands import Unavailable
from labs.zoo.judging import Fleet, Judgement
from labs.zoo.pools import Pooling, Pools
from labs.zoo.report import Row
from labs.zoo.sources import Sources


async def visit(project: Project, sources: Sources, fleet: Fleet, directory: Path) -> Row:
    """The row of a project; what was unpacked for it is gone afterwards."""
    began = time.monotonic()
    place = directory / project.name
    try:
        repository = await sources.repository(project, place / "repository")
        pooling = Pooling(fleet=fleet, project=project, repository=repository, scratch=place)
        judgement, pools = await pooling.run()
    except Unavailable as error:
        judgement, pools = Judgement(patches={}, error=str(error)), Pools()
    finally:
        await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)
    if reason := sources.without_lock.get(project.name):
        pools = replace(pools, cause="; ".join(filter(None, (pools.cause, reason))))
    return Row(project=project, judgement=judgement, pools=pools, seconds=time.monotonic() - began)

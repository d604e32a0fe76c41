"""One pool judged by a fleet, and ranked with scripted opinion by this tree and by another commit's."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labs.selection import opinion
from labs.selection.making import Pool
from labs.selection.probing import Probing
from labs.selection.report import HONESTIES, Row, Selected, counted
from labs.zoo.judging import Fleet, Judgement
from swe_ai_fleet.codec import to_plain
from swe_ai_fleet.orchestrator.ranking import normalised

DRAWS = 40
"""Of what reviewers and judges say, for each pool and honesty."""
BEFORE = "19df8bae9c2303423aaf38e5cd9ddf830943f1a3"
REFERENCE = Path(__file__).with_name("before.json")


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Ranks pools.

    Attributes:
        before: The interpreter of a built copy of the commit `BEFORE`; empty: its figures are `REFERENCE`'s.
        requests: Where each pool's candidates and evidence are kept, a line each, for `opinion.py`.
        probing: Has the probes of pools run.
    """

    before: str
    requests: Path
    probing: Probing

    async def row(self, pool: Pool, fleet: Fleet, repository: Path) -> Row:
        """A pool's row."""
        began = time.monotonic()
        patches = {made.candidate_id: made.patch for made in pool.candidates}
        judgement = await fleet.judge(repository, pool.ref, patches)
        if judgement.error:
            return Row(spec=pool.spec, pool=pool, cause=judgement.error, seconds=time.monotonic() - began)
        request = self._request(pool, judgement)
        examined = time.monotonic()
        probed = await self.probing.probed(pool, repository, request)
        request["probes"] = to_plain(probed.examination) if probed.examination is not None else None
        ended = time.monotonic()
        with self.requests.open("a") as file:
            file.write(json.dumps(request) + "\n")
        right = request["right"]
        without_probes = request | {"probes": None}
        return Row(
            spec=pool.spec,
            pool=pool,
            verdicts={name: judged.verdict for name, judged in judgement.patches.items()},
            probes=probed.ends,
            now=counted(await _ranked(sys.executable, request), right),
            without_probes=counted(await _ranked(sys.executable, without_probes), right),
            unexamined=counted(await _ranked(sys.executable, without_probes | {"examination": None}), right),
            before=await self._before(pool, request),
            seconds=ended - began,
            matrix_seconds=(request["examination"] or {}).get("duration_ms", 0) / 1000,
            probe_seconds=ended - examined,
        )

    def _request(self, pool: Pool, judgement: Judgement) -> dict[str, Any]:
        return {
            "name": pool.spec.name,
            "candidates": [payload["candidate"] for kind, payload in judgement.log if kind == "candidate_submitted"],
            "reports": [payload["report"] for kind, payload in judgement.log if kind == "checks_finished"],
            "examination": next(
                (payload["examination"] for kind, payload in judgement.log if kind == "candidates_examined"), None
            ),
            "behaviours": {made.candidate_id: _behaviour(made.patch) for made in pool.candidates},
            "right": [made.candidate_id for made in pool.candidates if made.right],
            "made": {made.candidate_id: str(made.author) for made in pool.candidates},
            "honesties": HONESTIES,
            "draws": DRAWS,
        }

    async def _before(self, pool: Pool, request: Mapping[str, Any]) -> Mapping[float, Selected]:
        content = hashlib.sha256(b"\n".join(made.patch for made in pool.candidates)).hexdigest()
        known: dict[str, Any] = json.loads(REFERENCE.read_text()) if REFERENCE.exists() else {"pools": {}}
        if not self.before:
            row = known["pools"].get(pool.spec.name)
            if row is None or row["patches"] != content:
                return {}
            return {float(honesty): Selected(**ends) for honesty, ends in row["selected"].items()}
        selected = counted(await _ranked(self.before, request), request["right"])
        plain = {
            str(honesty): {name: getattr(end, name) for name in Selected.__dataclass_fields__}
            for honesty, end in selected.items()
        }
        known |= {
            "commit": BEFORE,
            "pools": dict(sorted((known["pools"] | {pool.spec.name: {"patches": content, "selected": plain}}).items())),
        }
        REFERENCE.write_text(json.dumps(known, indent=1) + "\n")
        return selected


def _behaviour(patch: bytes) -> str:
    """Equal for patches that make the same change."""
    return hashlib.sha256(normalised(patch) or patch).hexdigest()


async def _ranked(python: str, request: Mapping[str, Any]) -> list[tuple[float, str, str | None, int]]:
    """The draws of a pool, ranked by the code that an interpreter has installed."""
    program = str(Path(opinion.__file__))
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" or python == sys.executable}
    process = await asyncio.create_subprocess_exec(
        python, program, cwd="/", env=variables, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate(json.dumps(request).encode() + b"\n")
    if process.returncode:
        raise RuntimeError(f"{python} {program} ended with {process.returncode}")
    return [(honesty, winner, verdict, opinions) for honesty, winner, verdict, opinions in json.loads(out)]

"""`make chaos` in small: an orchestrator, an agent's process and nats-server killed under a dozen executions."""

from __future__ import annotations

import pytest

from tests.chaos.plan import Victim, strikes
from tests.chaos.report import markdown, summary
from tests.chaos.run import Phase, run_chaos

VICTIMS = {Victim.ORCHESTRATOR: 1, Victim.ACTOR: 1, Victim.NATS: 1}


def test_a_seed_gives_the_same_strikes_again() -> None:
    assert strikes(7, 1, 100, VICTIMS) == strikes(7, 1, 100, VICTIMS)
    assert strikes(7, 1, 100, VICTIMS) != strikes(8, 1, 100, VICTIMS)
    planned = strikes(7, 1, 100, VICTIMS)
    assert [one.after for one in planned] == sorted(one.after for one in planned)
    assert sorted(one.victim for one in planned) == sorted(VICTIMS)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_dozen_executions_survive_three_kills() -> None:
    phase = Phase(name="own Ray each", executions=12, victims=VICTIMS)
    outcome = await run_chaos([phase], seed=3, width=6, latency=0.2, limit_seconds=180)
    assert outcome.proof.faults == [], markdown(outcome) + summary(outcome)
    assert outcome.proof.completed == outcome.proof.results == 12
    assert sorted(blow.victim for blow in outcome.blows) == sorted(VICTIMS)
    assert all(blow.recovered_seconds is None or blow.recovered_seconds >= 0 for blow in outcome.blows)
    assert outcome.proof.taken_over + outcome.proof.reassigned >= 1, "no kill hit anything at work"

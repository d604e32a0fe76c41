"""Recommendations of what to try next, by Thompson sampling over earlier outcomes.

Each choice (council, model profile, number of agents, approach) is a separate bandit. The belief about an option's
reward is a Beta distribution: it begins as Beta(1, 1), and an outcome of reward r adds r to its first and 1 - r to its
second parameter, times a weight. Thompson sampling (Thompson 1933; Agrawal and Goyal, "Analysis of Thompson sampling
for the multi-armed bandit problem", 2012) draws once from each and takes the highest draw, so that an option is tried
as often as it may be the best. Weights discount distant outcomes: old ones (Raj and Kalyani, "Taming non-stationary
bandits", 2017), those of other goals, other repositories, other roles.

The outcome of a part of an execution is in that of the whole, so only the whole counts; executions that never ran do
not count. As each choice is weighed by itself, an option is credited with all choices made together with it: for a
council that always has three members, the number three and the council earn the same.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median

from swe_ai_fleet.domain.candidate import Verdict
from swe_ai_fleet.domain.event import ExecutionStatus
from swe_ai_fleet.domain.memory import (
    BEST_RATING,
    LEAST_RATING,
    PART_OF,
    VERDICT,
    Advice,
    Option,
    Recommendation,
    WorkOutcome,
    goal_type,
)
from swe_ai_fleet.domain.task import TaskKind
from swe_ai_fleet.domain.text import utf8

HALF_LIFE_DAYS = 60.0
OTHER_GOAL = 0.25
"""The weight of an outcome of another type of goal; that of the same type is 1."""
OTHER_REPOSITORY = 0.5
OTHER_ROLE = 0.5
RATED = 0.7
"""The share of people's rating in a reward, if there is one."""
COST_SHARE = 0.2
"""The most that a costly success loses against a cheap one."""
UNPROVEN = 0.5
"""The quality of an unverified success. A verified one is better, by its share of passed checks."""
DRAWS = 1_000
MAX_OPTIONS = 20
"""How many options of a choice are weighed: the most tried ones, besides those that the question offers."""
PLANNED = "plan"
"""The approach of plan sessions."""
TRIAL = "a trial: "
"""How the reason of an advice starts that experience does not support."""
DEFAULT = "default"
"""The option of leaving a choice to the fleet."""
_SEATLESS = frozenset({PLANNED, str(TaskKind.WORKFLOW)})
_IDLE = frozenset({ExecutionStatus.FAILED, ExecutionStatus.TIMEOUT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A new task, and the options for it besides those already tried. `now` is UTC, ISO 8601.

    Without a role, or a repository, the outcomes of all count equally.
    """

    goal: str
    now: str
    role: str = ""
    repository: str = ""
    councils: Sequence[str] = ()
    model_profiles: Sequence[str] = ()
    agents: Sequence[int] = (1, 3, 5)
    approaches: Sequence[str] = ()
    seed: int = 0


@dataclass(slots=True)
class _Belief:
    successes: float = 1.0
    failures: float = 1.0
    tried: float = 0.0

    def add(self, reward: float, weight: float) -> None:
        self.successes += weight * reward
        self.failures += weight * (1 - reward)
        self.tried += weight

    @property
    def expected(self) -> float:
        return self.successes / (self.successes + self.failures)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bandit:
    choice: str
    value: Callable[[WorkOutcome], str]
    offered: Sequence[str] = field(default_factory=tuple[str, ...])
    seated: bool = True
    """Whether outcomes of approaches without a council are ignored for this choice."""


def recommend(question: Question, outcomes: Sequence[WorkOutcome]) -> Recommendation:
    """The recommendation for a task. Equal questions and outcomes give equal recommendations.

    Args:
        question: The task and its options.
        outcomes: Earlier outcomes of the same tenant.
    """
    kind = goal_type(question.goal)
    outcomes = [outcome for outcome in outcomes if teaches(outcome)]
    rewards = _rewards(outcomes)
    weights = [_weight(outcome, question, kind) for outcome in outcomes]
    draws = _random(question)

    def advice(bandit: _Bandit) -> Advice:
        return _advice(bandit, outcomes, rewards, weights, draws)

    return Recommendation(
        goal_type=kind,
        council=advice(_Bandit(choice="council", value=lambda past: past.council, offered=question.councils)),
        model_profile=advice(
            _Bandit(choice="model_profile", value=lambda past: past.model_profile, offered=question.model_profiles)
        ),
        agents=advice(
            _Bandit(
                choice="agents",
                value=lambda past: str(past.agents or ""),
                offered=[str(number) for number in question.agents],
            )
        ),
        approach=advice(
            _Bandit(choice="approach", value=lambda past: past.approach, offered=question.approaches, seated=False)
        ),
        outcomes=len(outcomes),
    )


def teaches(outcome: WorkOutcome) -> bool:
    """Whether an outcome counts as evidence about its choices.

    A cancelled execution does not, nor one that failed or timed out before any work was done; a rated one always does.
    """
    if outcome.rating:
        return True
    if outcome.status == ExecutionStatus.CANCELLED or outcome.metadata.get(PART_OF):
        return False
    return outcome.status not in _IDLE or bool(outcome.agents_used) or spent_on(outcome) > 0


def reward(outcome: WorkOutcome, *, typical_cost: float) -> float:
    """The reward of an outcome, 0 to 1: evidence and people's rating, a little less if it was costly.

    `typical_cost` is the median of the compared outcomes, in money, or in tokens without prices.
    """
    shown = outcome.approach_ratio if outcome.approach == PLANNED else outcome.evidence
    shown = 0.0 if outcome.metadata.get(VERDICT) == Verdict.UNVERIFIED else shown
    quality = UNPROVEN + (1 - UNPROVEN) * shown if outcome.success else 0.0
    if outcome.rating:
        rated = (outcome.rating - LEAST_RATING) / (BEST_RATING - LEAST_RATING)
        quality = RATED * rated + (1 - RATED) * quality
    spent = spent_on(outcome)
    dear = spent / (spent + typical_cost) if spent + typical_cost else 0.0
    return quality * (1 - COST_SHARE * dear)


def spent_on(outcome: WorkOutcome) -> float:
    """The cost in money, or in tokens without prices."""
    return outcome.usage.cost if _priced(outcome) else float(max(0, outcome.usage.total_tokens))


def _rewards(outcomes: Sequence[WorkOutcome]) -> list[float]:
    spent: dict[bool, list[float]] = {True: [], False: []}
    for outcome in outcomes:
        spent[_priced(outcome)].append(spent_on(outcome))
    typical = {priced: median(values) if values else 0.0 for priced, values in spent.items()}
    return [reward(outcome, typical_cost=typical[_priced(outcome)]) for outcome in outcomes]


def _priced(outcome: WorkOutcome) -> bool:
    return math.isfinite(outcome.usage.cost) and outcome.usage.cost > 0


def _weight(outcome: WorkOutcome, question: Question, kind: str) -> float:
    weight = 1.0 if outcome.goal_type == kind else OTHER_GOAL
    if question.repository and outcome.repository != question.repository:
        weight *= OTHER_REPOSITORY
    if question.role and outcome.role != question.role:
        weight *= OTHER_ROLE
    return weight * 0.5 ** (_days(outcome.ended_at, question.now) / HALF_LIFE_DAYS)


def _days(then: str, now: str) -> float:
    """Days between two times; 0 if one is invalid, or `then` is not earlier."""
    try:
        age = datetime.fromisoformat(now) - datetime.fromisoformat(then)
    except (ValueError, TypeError):
        return 0.0
    return max(0.0, age.total_seconds() / 86_400)


def _random(question: Question) -> random.Random:
    words = utf8(f"{question.seed}\x1f{question.goal}\x1f{question.repository}")
    return random.Random(hashlib.sha256(words).digest())  # noqa: S311 - no secret is made of it


def _advice(
    bandit: _Bandit,
    outcomes: Sequence[WorkOutcome],
    rewards: Sequence[float],
    weights: Sequence[float],
    draws: random.Random,
) -> Advice:
    beliefs = {name or DEFAULT: _Belief() for name in bandit.offered}
    for outcome, gained, weight in zip(outcomes, rewards, weights, strict=True):
        if not bandit.seated or outcome.approach.partition("/")[0] not in _SEATLESS:
            beliefs.setdefault(bandit.value(outcome) or DEFAULT, _Belief()).add(gained, weight)
    if not beliefs:
        beliefs[DEFAULT] = _Belief()
    most_tried = sorted(beliefs, key=lambda name: (-beliefs[name].tried, name))[:MAX_OPTIONS]
    names = sorted({*most_tried, *(name or DEFAULT for name in bandit.offered)})
    chosen = max(names, key=lambda name: draws.betavariate(beliefs[name].successes, beliefs[name].failures))
    options = _options({name: beliefs[name] for name in names}, draws)
    option = next(option for option in options if option.value == chosen)
    return Advice(choice=bandit.choice, value=chosen, options=options, reason=_reason(option, options))


def _options(beliefs: Mapping[str, _Belief], draws: random.Random) -> tuple[Option, ...]:
    """The beliefs about the options, the most promising first."""
    samples = {
        name: [draws.betavariate(belief.successes, belief.failures) for _ in range(DRAWS)]
        for name, belief in beliefs.items()
    }
    wins = dict.fromkeys(beliefs, 0)
    for number in range(DRAWS):
        wins[max(beliefs, key=lambda name, at=number: samples[name][at])] += 1
    options = [
        Option(
            value=name,
            tried=round(belief.tried, 2),
            expected=round(belief.expected, 4),
            low=round(sorted(samples[name])[DRAWS // 20], 4),
            high=round(sorted(samples[name])[-DRAWS // 20], 4),
            best=wins[name] / DRAWS,
        )
        for name, belief in beliefs.items()
    ]
    return tuple(sorted(options, key=lambda option: (-option.expected, option.value)))


def _reason(chosen: Option, options: Sequence[Option]) -> str:
    if len(options) == 1:
        return "only option"
    tried = [option for option in options if option.tried]
    if not tried:
        return f"{TRIAL}nothing is known yet"
    between = f"between {chosen.low:.2f} and {chosen.high:.2f} in 9 of 10 draws"
    estimate = f"{chosen.expected:.2f} ({between}) from {_outcomes(chosen)}, {chosen.best:.0%} likely best"
    best = tried[0]
    if chosen.value == best.value:
        return f"the best that is known: {estimate}"
    evidence = estimate if chosen.tried else f"never tried, {chosen.best:.0%} likely best"
    return f"{TRIAL}{evidence}; the best that is known is {best.value}: {best.expected:.2f} from {_outcomes(best)}"


def _outcomes(option: Option) -> str:
    """The number of outcomes, weighted: an outcome of another kind of work counts as a fraction."""
    return "1 outcome" if option.tried == 1 else f"{option.tried:.3g} outcomes"

"""Names on NATS: the one place that builds subjects, streams and object names.

A token made from an id is percent-encoded, the dot included: `a.b` becomes `a%2Eb`, so that an id is always one token.
"""

from __future__ import annotations

from urllib.parse import quote

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.event import CONTROL_SUBJECT, EXECUTION_SUBJECT
from swe_ai_fleet.domain.task import DEFAULT_TENANT

EVENTS = "AGENT_EVENTS"
RESULTS = "AGENT_RESULTS"
COMMANDS = "AGENT_COMMANDS"
PLANS = "AGENT_PLANS"
JOBS = "AGENT_JOBS"
DEAD_LETTERS = "AGENT_DLQ"
CONTEXT_CHANGES = "CONTEXT_CHANGES"

STREAM_SUBJECTS = {
    EVENTS: ("agent.events.>",),
    RESULTS: ("agent.results.>",),
    COMMANDS: ("agent.cmd.execute", "agent.cmd.execute.>"),
    PLANS: ("agent.plans", "agent.plans.>"),
    JOBS: ("agent.jobs.>",),
    DEAD_LETTERS: ("agent.dlq.>",),
    CONTEXT_CHANGES: ("context.changes.>", "context.work.>"),
}

ASKED = "agent.ask.*.*.*"
ALL_HEADS = (f"agent.events.*.*.{EXECUTION_SUBJECT}", f"agent.events.*.*.{CONTROL_SUBJECT}")


def token(text: str) -> str:
    """An id as one subject token. Raises InvalidRequest when it is empty."""
    if not text:
        raise InvalidRequest("a subject cannot contain an empty id")
    return quote(text, safe="").replace(".", "%2E")


def event_subject(tenant: str, execution_id: str, agent_id: str) -> str:
    """Where one writer's events go; `_` as agent id is the execution itself."""
    return f"agent.events.{token(tenant)}.{token(execution_id)}.{token(agent_id)}"


def execution_filter(tenant: str, execution_id: str) -> str:
    """Everything that one execution and its agents say."""
    return f"agent.events.{token(tenant)}.{token(execution_id)}.*"


def live_text_subject(tenant: str, execution_id: str, agent_id: str) -> str:
    """Where an agent's model is heard while it speaks; `*` as agent id is all of them."""
    agent = agent_id if agent_id == "*" else token(agent_id)
    return f"agent.live.text.{token(tenant)}.{token(execution_id)}.{agent}"


def live_want_subject(tenant: str, execution_id: str) -> str:
    """Where somebody says that they listen to an execution; both are tokens already."""
    return f"agent.live.want.{tenant}.{execution_id}"


def results_of(tenant: str) -> str:
    """What the subjects of a tenant's results begin with. No task id begins as the name of a tenant does here."""
    return "agent.results" if tenant == DEFAULT_TENANT else f"agent.results._{token(tenant)}"


def result_subject(tenant: str, task_id: str, agent_id: str = "") -> str:
    """Where a result goes. The default tenant uses the short name, others have theirs before the task."""
    tokens = [results_of(tenant)]
    tokens.append(token(task_id))
    if agent_id and agent_id != EXECUTION_SUBJECT:
        tokens.append(token(agent_id))
    return ".".join(tokens)


def job_subject(tenant: str, priority: str) -> str:
    """Where jobs of a tenant wait for a container; `*` as tenant is all of them."""
    return f"agent.jobs.{tenant if tenant == '*' else token(tenant)}.{token(priority)}"


def ask_subject(what: str, tenant: str, execution_id: str) -> str:
    """Where a host of agents asks the orchestrators for something of an execution."""
    return f"agent.ask.{what}.{token(tenant)}.{token(execution_id)}"


def chunk_prefix(tenant: str) -> str:
    """What the ids of a tenant's chunks in the object store begin with, so that their subjects tell tenants apart."""
    return f"{token(tenant)}."


def dead_letter_subject(consumer: str) -> str:
    """Where a consumer puts what it could not handle."""
    return f"agent.dlq.{token(consumer)}"


def change_subject(tenant: str, story_id: str) -> str:
    """Where the changes of a story go, each a version of it."""
    return f"context.changes.{token(tenant)}.{token(story_id)}"


def work_subject(tenant: str, execution_id: str) -> str:
    """Where the one record of what an execution did goes."""
    return f"context.work.{token(tenant)}.{token(execution_id)}"

"""Planning with a person: memory first, a proposal, a decision, and only then what has an effect.

`service` serves plan sessions, `opening` composes them from settings, for programs too; `sessions` handles the requests
of callers, `drive` drives the executions that they start.
"""

from functools import partial

from swe_ai_fleet.extension_registry import Extension, entry

_row = partial(entry, "extensions.plans.commands")

EXTENSION = Extension(
    services="service:open_service",
    task_buckets={"PLAN_SESSIONS": 0, "PLAN_SESSION_PARTS": 2},
    groups={
        "plan": 'Plan with a person: `fleet plan "GOAL"` proposes an approach; nothing is done before it is approved.',
    },
    commands={
        "plan goal": entry(
            "extensions.plans.commands:goal",
            "Have an approach proposed; at a terminal, decide about it and have it run. `goal` may be left out.",
            "fleet plan 'Move the settings to TOML' --repo .",
        ),
        "plan approve": _row(
            "Approve the approach that waits; `fleet plan continue` runs it.",
            "fleet plan approve settings",
        ),
        "plan reject": _row(
            "Reject the approach that waits; the session ends.",
            "fleet plan reject settings --text 'Too large'",
        ),
        "plan adjust": _row(
            "Have another approach proposed.", "fleet plan adjust settings --text 'Keep the old names'"
        ),
        "plan continue": _row(
            "Run what was approved. A second time shows the same result.", "fleet plan continue settings"
        ),
        "plan show": _row("Show a session as it stands.", "fleet plan show settings"),
        "plan list": _row("List the sessions that were worked on last.", "fleet plan list --limit 5"),
    },
)

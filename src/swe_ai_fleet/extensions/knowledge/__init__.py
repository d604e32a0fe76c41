"""Knowledge that outlasts executions: project knowledge, memories, outcomes, and the context service that serves them.

`service` composes the service, `client` connects the core to it. `MemoryManager` is an agent's memory without a fleet.
"""

from typing import TYPE_CHECKING, Any

from swe_ai_fleet.extension_registry import Extension, entry

if TYPE_CHECKING:
    from swe_ai_fleet.extensions.knowledge.manager import MemoryManager

__all__ = ["EXTENSION", "MemoryManager"]

EXTENSION = Extension(
    context="service:open_context",
    knowledge="client:KNOWLEDGE",
    exports=("MemoryManager",),
    groups={
        "context": "Stories, their tasks and decisions, as context for agents.",
        "memory": "Memories of agents, kept between runs.",
    },
    commands={
        "rate": entry(
            "extensions.knowledge.commands",
            "Rate the outcome of an execution; recommendations learn from ratings.",
            "fleet rate fix-dates 4 --comment 'Right, but long'",
        ),
        "recommend": entry(
            "extensions.knowledge.commands",
            "Recommend agents, models and an approach for a task, with their certainty. Starts and changes nothing.",
            "fleet recommend 'Fix the flaky login test' --repo .",
        ),
        "context stories": entry(
            "extensions.knowledge.commands",
            "List stories, the last changed first.",
            "fleet context stories --phase build",
        ),
        "context story": entry(
            "extensions.knowledge.commands",
            "Create a story.",
            "fleet context story dates 'Dates in every form' --criterion 'ISO weeks are accepted'",
        ),
        "context task": entry(
            "extensions.knowledge.commands",
            "Add a task to a story.",
            "fleet context task dates weeks 'Accept ISO weeks' --role DEV",
        ),
        "context decide": entry(
            "extensions.knowledge.commands",
            "Add a decision and its reason.",
            "fleet context decide utc 'All times are UTC' --story dates --why 'Servers are everywhere'",
        ),
        "context phase": entry(
            "extensions.knowledge.commands",
            "Move a story to its next phase, or back to an earlier one.",
            "fleet context phase dates build",
        ),
        "context show": entry(
            "extensions.knowledge.commands",
            "Show the context that agents get for a story; without one, the context of the whole project.",
            "fleet context show dates --role DEV --tokens 4000",
        ),
        "context relations": entry(
            "extensions.knowledge.commands",
            "Show what is related to a story, a task, a decision, an execution, a commit or a file.",
            "fleet context relations story:dates --depth 2",
        ),
        "context change": entry(
            "extensions.knowledge.commands",
            "Change a story, a task or a decision; other fields are kept.",
            "fleet context change dates --task weeks --state done",
        ),
        "memory add": entry(
            "extensions.knowledge.commands",
            "Store a fact.",
            "fleet memory add 'The tests need a database' --namespace repository:app",
        ),
        "memory recall": entry(
            "extensions.knowledge.commands",
            "Show memories that match a question, best first: score, namespace, source and id.",
            "fleet memory recall 'how are tests run' --limit 5",
        ),
        "memory clear": entry(
            "extensions.knowledge.commands",
            "Delete memories permanently.",
            "fleet memory clear --namespace repository:app --kind outcome",
        ),
    },
)


def __getattr__(name: str) -> Any:
    # Imported when it is used: the command line imports every extension, and only programs need this.
    if name != "MemoryManager":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from swe_ai_fleet.extensions.knowledge.manager import MemoryManager

    return MemoryManager

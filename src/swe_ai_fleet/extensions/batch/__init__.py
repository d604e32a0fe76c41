"""Batches of tasks from a file; studies of the effect of more candidates and repeats."""

from swe_ai_fleet.extension_registry import Extension, entry

EXTENSION = Extension(
    commands={
        "batch": entry(
            "extensions.batch.commands:batch",
            "Run the tasks of a file or a benchmark; continue a stopped batch; write results and a report beside it.",
            "fleet batch tasks.jsonl --repo-root clones --parallel 8 --evaluate",
            "fleet batch examples/harbor --task '*/median' --evaluate --output out",
        ),
        "study": entry(
            "extensions.batch.commands:study",
            "Measure the effect of deliberation: run tasks with 1, 3, 5 candidates, compare pass rates and cost.",
            "fleet study tasks.jsonl --candidates 1,3 --repeats 3",
        ),
    }
)

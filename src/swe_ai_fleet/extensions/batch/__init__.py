"""Many tasks from a file, one after the other or side by side; studies of what more candidates or retries bring."""

from swe_ai_fleet.extensions import Extension, entry

EXTENSION = Extension(
    commands={
        "batch": entry(
            "extensions.batch.commands:batch",
            "Run many tasks from a file, or a benchmark; go on where it stopped; keep results and a report beside it.",
            "fleet batch tasks.jsonl --repo-root clones --parallel 8 --evaluate",
            "fleet batch examples/harbor --task '*/median' --evaluate --output out",
        ),
        "study": entry(
            "extensions.batch.commands:study",
            "Measure what deliberation is worth: run tasks with 1, 3, 5 candidates, compare pass rates and cost.",
            "fleet study tasks.jsonl --candidates 1,3 --repeats 3",
        ),
    }
)

"""An example or more of every command, as `--help` and the manual page show them."""

from __future__ import annotations

from collections.abc import Mapping

import typer

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "status": ("fleet status",),
    "metrics": ("fleet metrics --since 7d --role QA",),
    "up": ("fleet up", "fleet up --vllm Qwen/Qwen2.5-Coder-7B-Instruct --vllm-args '--max-model-len 32768'"),
    "open": ("fleet open --browser",),
    "run": (
        "fleet run 'Let parse_date accept ISO weeks' --check 'pytest -q tests/test_dates.py'",
        "fleet run 'Upgrade to pydantic 2' --agents 5 --rounds 2 --approve risky --branch pydantic-2",
    ),
    "judge": (
        "fleet judge --repo . --base main --patch fix.patch --patch other.patch",
        "git diff main | fleet judge --repo . --base main --patch - --task 'Dates accept ISO weeks' --require-verified",
    ),
    "deliver": ("fleet deliver fix-dates agent-dev-2 --branch fix-dates --reason 'The old test is wrong'",),
    "init": (
        "fleet init fleet-secrets --tenants red,blue --hosts fleet.example.org",
        "fleet init fleet-secrets --check",
    ),
    "chat": ("fleet chat", "fleet chat --session morning --once 'What failed last night?'"),
    "rate": ("fleet rate fix-dates 4 --comment 'Right, but long'",),
    "recommend": ("fleet recommend 'Fix the flaky login test' --repo .",),
    "watch": ("fleet watch fix-dates --text",),
    "list": ("fleet list --status in_progress --status pending --limit 20",),
    "show": ("fleet show fix-dates",),
    "cancel": ("fleet cancel fix-dates --reason 'asked for the wrong thing'",),
    "export": (
        "fleet export fix-dates --format patch -o fix.patch",
        "fleet export tasks.results.jsonl --batch -o candidates.jsonl",
    ),
    "replay": ("fleet replay fix-dates", "fleet replay fix-dates --fork-at 6 --model another-model"),
    "approve": ("fleet approve fix-dates --text 'Mind the changelog'",),
    "reject": ("fleet reject fix-dates --text 'Not before the release'",),
    "adjust": ("fleet adjust fix-dates --text 'Leave the public names alone'",),
    "doctor": ("fleet doctor", "fleet doctor --server fleet.example.org:50055 --json"),
    "audit verify": ("fleet audit verify fix-dates",),
    "tools list": ("fleet tools list --role QA --read-only",),
    "tools run": ("fleet tools run files_read_file path=README.md --workspace .",),
    "env explain": ("fleet env explain", "fleet env explain --repo . --setup 'pip install moto' --json"),
    "env export": ("fleet env export fix-dates",),
    "councils list": ("fleet councils list --role DEV",),
    "councils create": ("fleet councils create DEV --agents 5 --rounds 2 --param temperature=0.2",),
    "councils delete": ("fleet councils delete DEV",),
    "councils register": ("fleet councils register QA tester-1 --endpoint 127.0.0.1:50061 --language python",),
    "councils unregister": ("fleet councils unregister QA tester-1",),
    "context stories": ("fleet context stories --phase build",),
    "context story": ("fleet context story dates 'Dates in every form' --criterion 'ISO weeks are accepted'",),
    "context task": ("fleet context task dates weeks 'Accept ISO weeks' --role DEV",),
    "context decide": ("fleet context decide utc 'All times are UTC' --story dates --why 'Servers are everywhere'",),
    "context phase": ("fleet context phase dates build",),
    "context show": ("fleet context show dates --role DEV --tokens 4000",),
    "context relations": ("fleet context relations story:dates --depth 2",),
    "context change": ("fleet context change dates --task weeks --state done",),
    "memory add": ("fleet memory add 'The tests need a database' --namespace repository:app",),
    "memory recall": ("fleet memory recall 'how are tests run' --limit 5",),
    "memory clear": ("fleet memory clear --namespace repository:app --kind outcome",),
    "plan goal": ("fleet plan 'Move the settings to TOML' --repo .",),
    "plan approve": ("fleet plan approve settings",),
    "plan reject": ("fleet plan reject settings --text 'Too large'",),
    "plan adjust": ("fleet plan adjust settings --text 'Keep the old names'",),
    "plan continue": ("fleet plan continue settings",),
    "plan show": ("fleet plan show settings",),
    "plan list": ("fleet plan list --limit 5",),
    "dlq list": ("fleet dlq list",),
    "dlq replay": ("fleet dlq replay 17",),
    "dlq drop": ("fleet dlq drop 17",),
    "access check": ("fleet access check --file access.toml",),
    "access token add": ("fleet access token add alice --tenant red --role submitter --role approver",),
    "access token list": ("fleet access token list",),
    "access token revoke": ("fleet access token revoke alice",),
}
"""By the words of the command behind `fleet`."""

EXIT_CODES: Mapping[int, str] = {
    0: "the winner is verified, or the command is done",
    1: "nobody won, every patch is refuted, or a check of the command's own failed",
    2: "bad usage: what was asked for is not there, or not possible",
    3: "a dependency is down, or has no room",
    4: "cancelled or timed out",
    5: "rejected by a person",
    6: "the winner, or the best patch, is unverified: nothing shows that it works",
}

ENVIRONMENT: Mapping[str, str] = {
    "FLEET_SERVER": "HOST:PORT of the fleet, in place of the one on FLEET_HOME",
    "FLEET_TOKEN": "the token for it; without it, that of FLEET_HOME",
    "FLEET_HOME": "where a fleet on this machine keeps everything",
    "FLEET_MODEL_URL": "http(s)://HOST:PORT/v1 of the model servers, with commas between",
    "FLEET_MODEL": "the model that they serve",
}
"""What people set most; docs/configuration.md has the others."""


def top() -> str:
    """What `fleet --help` ends with: exit codes and environment."""
    codes = "\n".join(f"  {code}  {meaning}" for code, meaning in EXIT_CODES.items())
    variables = "\n".join(f"  {name:<15}  {meaning}" for name, meaning in ENVIRONMENT.items())
    return (
        f"\b\nExit codes:\n{codes}\n\n\b\nEnvironment (fleet.toml in FLEET_HOME has the same settings, or the file of "
        "--config):\n"
        f"{variables}\n\nfleet COMMAND --help has the options of a command, with examples."
    )


def add_examples(app: typer.Typer, examples: Mapping[str, tuple[str, ...]], *words: str) -> None:
    """Let every command's help end with its examples, by the words of the command."""
    for command in app.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "").replace("_", "-")
        lines = examples.get(" ".join((*words, name)), ())
        if lines:
            command.epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
    for group in app.registered_groups:
        if group.typer_instance is not None and isinstance(group.name, str):
            add_examples(group.typer_instance, examples, *words, group.name)

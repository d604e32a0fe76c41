"""The commands of `fleet`: where the code of each is, its help and its examples, for the help and the manual page.

A command's code is imported only when it is needed; `fleet --help` reads this module alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from swe_ai_fleet.extension_registry import CommandEntry, entry

GROUPS: Mapping[str, str] = {
    "audit": "Verify the audit chains of agents.",
    "tools": "List the operations of agents, or run one by hand.",
    "env": "Environments in which a repository's commands run.",
    "councils": "The agents for the tasks of each role.",
    "erase": "Erase stored data permanently, from every store.",
    "dlq": "Messages on NATS that could not be handled.",
    "access": "Tokens, issuers and certificates of the access file.",
    "access token": "Tokens of people, programs and services.",
}

SECTIONS: Mapping[str, str] = {
    "Work": "run batch study judge workflow plan chat",
    "Follow and decide": "list show watch open approve reject adjust cancel deliver rate recommend",
    "Recordings and audit": "export replay audit",
    "Knowledge, tools and councils": "context memory tools env councils",
    "Run a fleet": "up doctor status metrics capacity drain init access backup restore erase dlq",
    "Integrations": "mcp telegram webhooks",
}
"""The top-level commands in the sections of the help; other commands of extensions are in a last section."""

_row = partial(entry, "cli.rows")

ENTRIES: Mapping[str, CommandEntry] = {
    "status": _row(
        "Show hosts, machines, model servers and the queue as they are now; exit code 1 where something is down.",
        "fleet status",
    ),
    "metrics": _row(
        "Show durations of executions, agents, model and tool calls, and their costs.",
        "fleet metrics --since 7d --role QA",
    ),
    "drain": entry(
        "cli.rows:drain",
        "Take an orchestrator, a host or a node out of work; wait until it can be stopped, and show what it waits for.",
        "fleet drain node fleet-0-1-0-agents-worker-x7k2p --within 30m",
        "fleet drain orchestrator fleet-orchestrator-5d9c --undo",
    ),
    "capacity": entry(
        "cli.capacity:capacity",
        "Calculate what a number of GPUs needs: agents, NATS, orchestrators, Ray nodes, volumes, money.",
        "fleet capacity --gpus 60 --steps-per-minute 10",
    ),
    "up": entry(
        "cli.up:up",
        "Start NATS, Ray and the orchestrator here, until Ctrl-C.",
        "fleet up",
        "fleet up --vllm Qwen/Qwen2.5-Coder-7B-Instruct --vllm-args '--max-model-len 32768'",
    ),
    "open": entry(
        "cli.up:open_page",
        "Print the address of the running fleet's page; anyone with the address has access.",
        "fleet open --browser",
    ),
    "run": entry(
        "cli.run:run",
        "Run several agents on a task; show the verdict, the winner, its diff and its branch.",
        "fleet run 'Let parse_date accept ISO weeks' --check 'pytest -q tests/test_dates.py'",
        "fleet run 'Upgrade to pydantic 2' --agents 5 --rounds 2 --approve risky --branch pydantic-2",
    ),
    "judge": entry(
        "cli.run:judge",
        "Judge patches from anywhere: environment, baseline, verdict and rank; no agent and no model server.",
        "fleet judge --repo . --base main --patch fix.patch --patch other.patch",
        "git diff main | fleet judge --repo . --base main --patch - --task 'Dates accept ISO weeks' --require-verified",
    ),
    "deliver": _row(
        "Put a candidate of an ended execution on a branch, whatever its verdict; the log records the decision.",
        "fleet deliver fix-dates agent-dev-2 --branch fix-dates --reason 'The old test is wrong'",
    ),
    "init": entry(
        "cli.access:init",
        "Write what a secured fleet needs: certificates, NATS accounts, tokens, settings. "
        "Existing keys are never overwritten.",
        "fleet init fleet-secrets --tenants red,blue --hosts fleet.example.org",
        "fleet init fleet-secrets --check",
    ),
    "watch": entry(
        "cli.run:watch",
        "Show an execution as it happens; with --json a line for each event.",
        "fleet watch fix-dates --text",
    ),
    "list": _row("List executions, the newest first.", "fleet list --status in_progress --status pending --limit 20"),
    "show": entry(
        "cli.rows:show",
        "Show the current state of an execution: verdict, candidates, evidence, diff, branch.",
        "fleet show fix-dates",
    ),
    "cancel": _row(
        "Stop an execution's agents and their processes.",
        "fleet cancel fix-dates --reason 'asked for the wrong thing'",
    ),
    "erase execution": _row(
        "Erase an execution and its parts; a tombstone and the hashes of its audit stay.",
        "fleet erase execution fix-dates --reason 'a key was printed' --dry-run",
    ),
    "erase caller": _row(
        "Erase everything that a caller submitted.",
        "fleet erase caller alice --reason 'request of 3 May'",
    ),
    "erase tenant": _row(
        "Erase everything of your tenant.", "fleet erase tenant payments --reason 'end of contract' --cancel"
    ),
    "erase memory": _row(
        "Erase memories, by id or by namespace.",
        "fleet erase memory --namespace repository:app --reason 'wrong lessons'",
    ),
    "export": entry(
        "cli.recordings:export",
        "Write an agent's run as an ATIF trajectory, OpenAI messages or Markdown, or its patch; or all agents' audit.",
        "fleet export fix-dates --format patch -o fix.patch",
        "fleet export tasks.results.jsonl --batch -o candidates.jsonl",
    ),
    "replay": entry(
        "cli.recordings:replay",
        "Run an agent again here against its recorded replies; exit code 1 where it differs from the recording.",
        "fleet replay fix-dates",
        "fleet replay fix-dates --fork-at 6 --model another-model",
    ),
    "approve": _row("Approve an agent's request.", "fleet approve fix-dates --text 'Mind the changelog'"),
    "reject": _row(
        "Reject an agent's request; a rejected plan ends its run.",
        "fleet reject fix-dates --text 'Not before the release'",
    ),
    "adjust": _row(
        "Have an agent make a new proposal, guided by --text.",
        "fleet adjust fix-dates --text 'Leave the public names alone'",
    ),
    "doctor": entry(
        "cli.doctor:doctor",
        "Test everything that the fleet needs; show what is wrong and how to fix it.",
        "fleet doctor",
        "fleet doctor --server fleet.example.org:50055 --json",
        "fleet doctor --in-cluster",
    ),
    "audit verify": entry(
        "cli.recordings:verify",
        "Recompute every agent's audit chain from the log, or those of a file; exit code 1 where one is broken.",
        "fleet audit verify fix-dates",
    ),
    "tools list": entry(
        "cli.tools:list_tools",
        "Show every operation with its traits.",
        "fleet tools list --role QA --read-only",
    ),
    "tools run": entry(
        "cli.tools:run_tool",
        "Run one operation in the sandbox, audited; exit code 1 where it fails or is refused, 2 for wrong arguments.",
        "fleet tools run files_read_file path=README.md --workspace .",
    ),
    "env explain": entry(
        "cli.environment:explain",
        "Build a repository's environment, or take it from the cache; show the decisions and the result of each step.",
        "fleet env explain",
        "fleet env explain --repo . --setup 'pip install moto' --json",
    ),
    "env export": entry(
        "cli.environment:export",
        "Print the result of an environment run as options for `fleet run`, `judge` and `env explain`.",
        "fleet env export fix-dates",
    ),
    "councils list": _row("Show councils and their agents.", "fleet councils list --role DEV"),
    "councils create": _row(
        "Create a role's council.",
        "fleet councils create DEV --agents 5 --rounds 2 --param temperature=0.2",
    ),
    "councils delete": _row(
        "Delete a role's council; later tasks of the role get agents of their own.",
        "fleet councils delete DEV",
    ),
    "councils register": _row(
        "Add an agent to a role's council.",
        "fleet councils register QA tester-1 --endpoint 127.0.0.1:50061 --language python",
    ),
    "councils unregister": _row("Remove an agent from a role's council.", "fleet councils unregister QA tester-1"),
    "dlq list": entry(
        "cli.dead_letters:list_letters",
        "Show the messages that could not be handled: number, subject, deliveries and reason.",
        "fleet dlq list",
    ),
    "dlq replay": entry(
        "cli.dead_letters:replay",
        "Publish a message again on its subject; the id of its task prevents a second execution.",
        "fleet dlq replay 17",
    ),
    "dlq drop": entry("cli.dead_letters:drop", "Delete a message.", "fleet dlq drop 17"),
    "access check": entry(
        "cli.access:check",
        "Read the access file as servers do, and ask issuers of JWTs for their keys.",
        "fleet access check --file access.toml",
    ),
    "access token add": entry(
        "cli.access:add",
        "Create a token and print it once; the file stores only its SHA-256.",
        "fleet access token add alice --tenant red --role submitter --role approver",
    ),
    "access token list": entry(
        "cli.access:list_tokens", "List tokens with their names and expiry dates.", "fleet access token list"
    ),
    "access token rotate": entry(
        "cli.access:rotate",
        "Create a new token for a name and print it once; the previous one stays valid for a while.",
        "fleet access token rotate alice --overlap 1h",
    ),
    "access token revoke": entry(
        "cli.access:revoke",
        "Remove a name's tokens; servers refuse them from the next request on.",
        "fleet access token revoke alice",
    ),
}
"""The commands by their words after `fleet`, in the order of the help."""

EXIT_CODES: Mapping[int, str] = {
    0: "the winner is verified, or the command is done",
    1: "no winner, every patch is refuted, or a check by the command failed",
    2: "bad usage: something named does not exist, or the request is not possible",
    3: "a dependency is down or full",
    4: "cancelled or timed out",
    5: "rejected by a person",
    6: "the winner, or the best patch, is unverified: nothing shows that it works",
}

ENVIRONMENT: Mapping[str, str] = {
    "FLEET_SERVER": "HOST:PORT of the fleet, instead of that of FLEET_HOME",
    "FLEET_TOKEN": "the token for it; without it, that of FLEET_HOME",
    "FLEET_HOME": "the directory of a fleet on this machine",
    "FLEET_MODEL_URL": "http(s)://HOST:PORT/v1 of the model servers, comma-separated; or a source that lists them",
    "FLEET_MODEL": "the model of those servers",
}
"""The most used settings; docs/configuration.md has the others."""


def top() -> str:
    """The end of `fleet --help`: exit codes and environment variables."""
    codes = "\n".join(f"  {code}  {meaning}" for code, meaning in EXIT_CODES.items())
    variables = "\n".join(f"  {name:<15}  {meaning}" for name, meaning in ENVIRONMENT.items())
    return (
        f"\b\nExit codes:\n{codes}\n\n\b\nEnvironment (fleet.toml in FLEET_HOME has the same settings, or the file of "
        "--config):\n"
        f"{variables}\n\nfleet COMMAND --help has the options of a command, with examples."
    )

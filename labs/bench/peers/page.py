"""`docs/bench.md`, written from one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labs.bench.peers.running import Figures

_BUSY = 0.5
"""Above this load for each CPU before the run, the page says that the machine was busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where it was measured. Loads are the averages of one minute."""

    cpus: int
    memory_gib: float
    architecture: str
    python: str
    system: str
    load_before: float
    load_after: float
    at: str


def page(measured: Sequence[Figures], machine: Machine, *, steps: int, agents: int, latency: float, rounds: int) -> str:
    """The whole document."""
    ideal = (steps + 1) * latency
    rows = "\n".join(
        f"| {one.name} {one.version} | {one.about} | {_cell(one.step_ms)} | {_cell(one.crowd_s)} | "
        f"{_cell(one.peak_mib)} |"
        for one in measured
    )
    problems = "".join(f"- **{one.name}** {_line(one.problem)}\n" for one in measured if one.problem)
    return f"""# Benchmarks with other agents

```sh
make bench-peers         # installs the peers into .venv-peers, measures, writes this page again
```

Measured on {machine.at}: {machine.cpus} CPUs, {machine.memory_gib:.0f} GiB, {machine.architecture}, {machine.system},
Python {machine.python}; load {machine.load_before:.1f} before and {machine.load_after:.1f} after it.
{_warning(machine)}
| | concurrency | one agent: ms a step | {agents} agents, {latency:g} s a reply (ideal {ideal:g} s): s | peak MiB |
| --- | --- | ---: | ---: | ---: |
{rows}

{"What is missing:" + chr(10) + chr(10) + problems if problems else ""}
{"Each was measured once" if rounds == 1 else f"The best of {rounds} rounds is shown"}. Each agent takes {steps}
shell steps (`echo` into a file and `wc -l`) and ends; all get their replies from the same scripted
model server, over HTTP, so no figure contains a model's time. The first figure has no model latency: it is the
agent's own overhead per step. The second has {agents} agents at once, each reply after {latency:g} s. Memory is the
peak of the summed PSS of all processes except the model server; ours includes NATS, Ray and the orchestrator.

The rows do different amounts of work, so they are no ranking. The peers run each command on the bare machine and
write no log; our steps run in a sandbox, in a separate clone for each agent, audited, and stored as events before and
after each call. The peers are libraries in one process; ours is a service of several
processes: its memory pays for continuing after any of them dies. A real model takes seconds for a reply, which
hides most of these differences. The programs in `labs/bench/peers/drivers` run the peers with their
default settings, which are not tuned for many agents; patches from experts are welcome. Each run, ours
too, has two minutes. Commands are numbered for the peers, since one of them answers equal calls from a cache.
`make bench` measures the overheads of single parts.
"""


def _warning(machine: Machine) -> str:
    if machine.load_before <= _BUSY * machine.cpus:
        return ""
    return "\n**The machine was busy with other work: compare the rows, not with other pages.**\n"


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _line(text: str) -> str:
    return " ".join(text.split())[:300].replace("|", "/").replace("<", "(").replace(">", ")")

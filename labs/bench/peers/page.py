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
    return f"""# Measured beside others

```sh
make bench-peers         # installs the peers into .venv-peers, measures, writes this page anew
```

Measured on {machine.at}: {machine.cpus} CPUs, {machine.memory_gib:.0f} GiB, {machine.architecture}, {machine.system},
Python {machine.python}; load {machine.load_before:.1f} before and {machine.load_after:.1f} after it.
{_warning(machine)}
| | how it runs many | one agent: ms a step | {agents} agents, {latency:g} s a reply (ideal {ideal:g} s): s | peak MiB |
| --- | --- | ---: | ---: | ---: |
{rows}

{"What is missing:" + chr(10) + chr(10) + problems if problems else ""}
{"Everybody was measured once" if rounds == 1 else f"The best of {rounds} rounds is shown"}. Everybody takes {steps}
shell steps (`echo` into a file and `wc -l`) and ends; the replies come from the same scripted
model server, over HTTP, so that nothing of it is a model's time. The first figure is without any latency of the model:
what an agent adds to a step. The second has {agents} agents at once, each reply after {latency:g} s. Memory is the peak
of the summed PSS of all processes but the model server's; ours includes NATS, Ray and the orchestrator.

The rows do not do the same amount of work, so they are no ranking. The peers run each command on the bare machine and
write no log; our steps are run in a sandbox, in a clone of each agent's own, audited, and stored as events before and
after each call. The peers are libraries in one process and start nothing beside it; ours is a service of several
processes, whose memory is the price of going on after any of them dies. A real model takes seconds for a reply, beside
which most of these differences vanish. Peers are driven by the programs in `labs/bench/peers/drivers`, with the
settings they come with, which are not tuned for a crowd; who knows them better may send a patch. Everybody, we
too, has two minutes for a run. Commands are numbered for the peers, since one of them answers equal calls from a cache.
The overheads of single parts are `make bench`.
"""


def _warning(machine: Machine) -> str:
    if machine.load_before <= _BUSY * machine.cpus:
        return ""
    return "\n**The machine was busy with other work: compare the rows, not with other pages.**\n"


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _line(text: str) -> str:
    return " ".join(text.split())[:300].replace("|", "/").replace("<", "(").replace(">", ")")

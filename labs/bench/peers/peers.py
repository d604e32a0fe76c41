"""The peers: what is installed of each, what its scripted replies look like, and the program that drives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from labs.bench.steps import COMMAND

_LITELLM = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
"""Prices are not fetched from the network."""
DRIVERS = Path(__file__).parent / "drivers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One of them. `tool` runs a command, `end` is the call that ends its work; `about` says how it runs many."""

    name: str
    packages: tuple[str, ...]
    driver: str
    about: str
    tool: str
    end: tuple[str, Mapping[str, str]]
    variables: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def program(self) -> Path:
        return DRIVERS / self.driver

    def turns(self, steps: int) -> list[dict[str, object]]:
        """Its scripted replies. Commands are numbered, for one of them answers equal calls from a cache."""
        commands = [COMMAND.replace("step", f"step {number}") for number in range(1, steps + 1)]
        return [
            *({"tool_calls": [(self.tool, {"command": command})]} for command in commands),
            {"tool_calls": [self.end]},
        ]


PEERS = (
    Peer(
        name="kodeagent",
        packages=("kodeagent",),
        driver="kodeagent_driver.py",
        about="asyncio, in one process",
        tool="shell_run_command",
        end=("final_answer", {"result": "All steps taken."}),
        variables=_LITELLM,
    ),
    Peer(
        name="smolagents",
        packages=("smolagents[openai]",),
        driver="smolagents_driver.py",
        about="a thread an agent, in one process",
        tool="shell_run_command",
        end=("final_answer", {"answer": "All steps taken."}),
    ),
    Peer(
        name="mini-swe-agent",
        packages=("mini-swe-agent", "mcp"),  # its model library imports the latter
        driver="mini_swe_agent_driver.py",
        about="a thread an agent, in one process",
        tool="bash",
        end=("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}),
        variables={"MSWEA_SILENT_STARTUP": "1", "MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_CONFIGURED": "true"}
        | _LITELLM,
    ),
)

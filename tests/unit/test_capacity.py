"""`fleet capacity` and docs/capacity.md: one set of figures, and an example that is what the command prints."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml
from typer.testing import CliRunner

from swe_ai_fleet.cli import capacity
from swe_ai_fleet.cli.main import app
from swe_ai_fleet.settings import Settings
from tests.tables import table

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "capacity.md"
COMMAND = ("capacity", "--gpus", "60", "--steps-per-minute", "10")


def _rows(*words: str) -> dict[str, str]:
    done = CliRunner().invoke(app, [*COMMAND, *words, "--json"])
    assert done.exit_code == 0, done.output
    return {row["what"]: row["needed"] for row in json.loads(done.stdout)["rows"]}


def test_its_figures_are_those_of_the_page_the_settings_and_the_manifests() -> None:
    text = PAGE.read_text(encoding="utf-8")
    measured = text.partition("<!-- figures -->")[2].partition("<!-- end of figures -->")[0]
    cells = re.findall(r"^\| ([^|]+)\| ([^|]+)\|", measured, re.MULTILINE)
    figures = {name.strip(): value.strip() for name, value in cells}
    assert figures["CPU of a step (tool call, audit, events)"] == f"{1000 * capacity.STEP_CPU_SECONDS:.1f} ms"
    assert figures["agents per GiB, NATS, Ray and orchestrator included"] == str(capacity.AGENTS_PER_GIB)
    assert figures["events of a step"] == str(capacity.EVENTS_PER_STEP)
    assert f"some {capacity.NATS_STEPS:,} steps a second" in text
    assert f"= {capacity.GPU_AGENTS} agents" in text
    [knee] = re.findall(r"^\| 128 \| ([\d.]+) ", text, re.MULTILINE)
    assert abs(float(knee) - capacity.GPU_STEPS) < 1
    fields = Settings.model_fields
    assert (fields["max_executions"].default, fields["event_days"].default) == (capacity.DRIVES, capacity.EVENT_DAYS)
    cluster = next(yaml.safe_load_all((ROOT / "deploy/k8s/base/ray.yaml").read_text()))
    [group] = cluster["spec"]["workerGroupSpecs"]
    [container] = group["template"]["spec"]["containers"]
    hosts = int(re.findall(r"agent_host\D+(\d+)", group["rayStartParams"]["resources"])[0])
    limits = container["resources"]["limits"]
    assert (limits["cpu"], limits["memory"]) == (str(capacity.POD_CORES), f"{capacity.POD_GIB}Gi")
    assert hosts * fields["agents_per_actor"].default == capacity.POD_AGENTS


def test_the_example_of_the_page_is_what_the_command_prints() -> None:
    done = CliRunner().invoke(app, [*COMMAND, "--json"])
    rows = json.loads(done.stdout)["rows"]
    table = "\n".join(f"| {row['what']} | {row['needed']} | {row['from']} |" for row in rows)
    wanted = f"`fleet {' '.join(COMMAND)}`\n\n| what | needed | from |\n| --- | ---: | --- |\n{table}\n"
    found = re.search(r"<!-- example -->\n(.*)<!-- end of example -->", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found and found[1] == wanted, f"write it between the marks:\n{wanted}"


def test_more_of_one_thing_needs_more_of_what_stands_behind_it() -> None:
    whole = _rows()
    assert whole["agents at once"] == "8,640" and whole["steps a second"] == "1,440"
    # Agents that are slow have no more room in the cache.
    slow = _rows("--steps-per-minute", "2")
    assert (slow["agents at once"], slow["NATS"]) == (f"{60 * capacity.GPU_AGENTS:,}", "1")
    assert slow["executions at once"] > whole["executions at once"]
    free = _rows("--command-seconds", "0", "--gpu-price", "0", "--core-price", "0", "--gib-price", "0")
    assert free["money a month"] == "0" and int(free["Ray worker Pods"]) == 68
    assert _rows("--hours", "12")["executions a day"] == "691,200"


@table("words", [("--gpus", "0"), ("--hours", "nan"), ("--gpu-price", "-1"), ("--agents", "1000000")])
def test_what_cannot_be_calculated_is_refused(words: tuple[str, str]) -> None:
    done = CliRunner().invoke(app, [*COMMAND, *words])
    assert done.exit_code == 2 and words[0] in done.output

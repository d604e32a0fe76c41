"""Each alert, in a situation that it is there for and in one that it is not: evaluated by Prometheus' `promtool`."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.promql import named

_RULES = Path(__file__).parents[2] / "deploy" / "observability" / "prometheus" / "alerts.yaml"
_ALL = "0+0x300"
Situation = Mapping[str, str]

# What is told each minute, in promtool's notation (`start+growthxtimes`): where something is wrong, and where not.
_WRONG_AND_WELL: Mapping[str, tuple[Situation, Situation]] = {
    "FleetReplicaDown": (
        {'up{job="fleet-gateway",instance="a"}': _ALL},
        {'up{job="fleet-gateway",instance="a"}': "1+0x300", 'up{job="else",instance="a"}': _ALL},
    ),
    "FleetOrchestratorAbsent": (
        {'up{job="fleet-gateway",instance="a"}': "1+0x300"},
        {'up{job="fleet-orchestrator",instance="a"}': "1+0x300"},
    ),
    "FleetNatsDown": ({'fleet_nats_up{instance="a"}': _ALL}, {'fleet_nats_up{instance="a"}': "1+0x300"}),
    "FleetNoProgress": (
        {
            'fleet_executions_running{tenant="t",instance="a"}': "1+0x300",
            'fleet_agent_steps_total{tenant="t",instance="a"}': "9+0x300",
        },
        {
            'fleet_executions_running{tenant="t",instance="a"}': "1+0x300",
            'fleet_agent_steps_total{tenant="t",instance="a"}': "9+1x300",
            'fleet_executions_running{tenant="u",instance="a"}': "1+0x300",
            'fleet_agent_steps_total{tenant="u",instance="a"}': "9+0x300",
        },
    ),
    "FleetScrapeSourceDown": (
        {'fleet_scrape_source_up{source="log",instance="a"}': _ALL},
        {'fleet_scrape_source_up{source="log",instance="a"}': "1+0x300"},
    ),
    # promtool's clock begins in 1970, as the ends of certificates do.
    "FleetCertificateExpiring": (
        {'fleet_certificate_expiry_timestamp_seconds{use="server",instance="a"}': "0+0x300"},
        {'fleet_certificate_expiry_timestamp_seconds{use="server",instance="a"}': "1300000+0x300"},
    ),
    "FleetFileDescriptorsLow": (
        {
            'process_open_fds{job="fleet-orchestrator",instance="a"}': "900+0x300",
            'process_max_fds{job="fleet-orchestrator",instance="a"}': "1024+0x300",
        },
        {
            'process_open_fds{job="fleet-orchestrator",instance="a"}': "90+0x300",
            'process_max_fds{job="fleet-orchestrator",instance="a"}': "1024+0x300",
        },
    ),
    "FleetQueueWaitLong": (
        {
            'fleet_queue_wait_seconds_bucket{tenant="t",instance="a",le="120.0"}': _ALL,
            'fleet_queue_wait_seconds_bucket{tenant="t",instance="a",le="300.0"}': "0+1x300",
            'fleet_queue_wait_seconds_bucket{tenant="t",instance="a",le="+Inf"}': "0+1x300",
        },
        {
            'fleet_queue_wait_seconds_bucket{tenant="t",instance="a",le="1.0"}': "0+1x300",
            'fleet_queue_wait_seconds_bucket{tenant="t",instance="a",le="300.0"}': "0+1x300",
            'fleet_queue_wait_seconds_bucket{tenant="t",instance="a",le="+Inf"}': "0+1x300",
        },
    ),
    "FleetQueueNearlyFull": (
        {'fleet_queue_depth{instance="a"}': "90+0x300", 'fleet_queue_limit{instance="a"}': "100+0x300"},
        {'fleet_queue_depth{instance="a"}': "10+0x300", 'fleet_queue_limit{instance="a"}': "100+0x300"},
    ),
    # Two orchestrators tell the same of the log: ten of twenty failed, not twenty of forty.
    "FleetExecutionErrorsHigh": (
        {
            f'fleet_executions_finished_total{{tenant="t",status="{status}",instance="{instance}"}}': "0+1x300"
            for status in ("failed", "completed")
            for instance in "ab"
        },
        {
            'fleet_executions_finished_total{tenant="t",status="failed",instance="a"}': _ALL,
            'fleet_executions_finished_total{tenant="t",status="no_winner",instance="a"}': "0+1x300",
        },
    ),
    "FleetCallErrorsHigh": (
        {
            'fleet_grpc_requests_total{job="fleet-context",code="INTERNAL"}': "0+1x300",
            'fleet_grpc_requests_total{job="fleet-context",code="OK"}': "0+9x300",
        },
        {
            'fleet_grpc_requests_total{job="fleet-context",code="UNAUTHENTICATED"}': "0+9x300",
            'fleet_grpc_requests_total{job="fleet-context",code="OK"}': "0+1x300",
        },
    ),
    "FleetHttpErrorsHigh": (
        {
            'fleet_http_requests_total{job="fleet-gateway",status="503"}': "0+1x300",
            'fleet_http_requests_total{job="fleet-gateway",status="200"}': "0+9x300",
        },
        {
            'fleet_http_requests_total{job="fleet-gateway",status="404"}': "0+9x300",
            'fleet_http_requests_total{job="fleet-gateway",status="200"}': "0+1x300",
        },
    ),
    "FleetHostsSilent": (
        {'fleet_hosts{state="silent",instance="a"}': "1+0x300"},
        {'fleet_hosts{state="silent",instance="a"}': _ALL, 'fleet_hosts{state="up",instance="a"}': "1+0x300"},
    ),
    "FleetAgentRunsLost": (
        {'fleet_agent_runs_lost_total{tenant="t",instance="a"}': "0+1x300"},
        {
            # Two orchestrators that tell of the same three.
            f'fleet_agent_runs_lost_total{{tenant="t",instance="{instance}"}}': "0+0x108 1+1x2 3+0x180"
            for instance in "ab"
        },
    ),
    "FleetToolErrorsHigh": (
        {
            'fleet_tool_calls_total{operation="tests_run",outcome="timeout",instance="a"}': "0+1x300",
            'fleet_tool_calls_total{operation="tests_run",outcome="success",instance="a"}': "0+1x300",
        },
        {
            'fleet_tool_calls_total{operation="tests_run",outcome="error",instance="a"}': "0+1x300",
            'fleet_tool_calls_total{operation="tests_run",outcome="timeout",instance="a"}': _ALL,
        },
    ),
    "FleetModelServerDown": (
        {f'fleet_model_server_up{{endpoint="http://m",instance="{instance}"}}': _ALL for instance in "ab"},
        {
            'fleet_model_server_up{endpoint="http://m",instance="a"}': _ALL,
            'fleet_model_server_up{endpoint="http://m",instance="b"}': "1+0x300",
        },
    ),
    "FleetModelBreakerOpen": (
        {'fleet_model_pool_breakers_open{endpoint="http://m",instance="a"}': "1+0x300"},
        {'fleet_model_pool_breakers_open{endpoint="http://m",instance="a"}': _ALL},
    ),
    "FleetModelCallsWaiting": (
        {f'fleet_model_pool_waiting{{instance="{instance}"}}': "30+0x300" for instance in "ab"},
        {'fleet_model_pool_waiting{instance="a"}': "30+0x300"},
    ),
    "FleetEventLogNearlyFull": (
        {'fleet_stream_bytes{stream="s"}': "90+0x300", 'fleet_stream_limit_bytes{stream="s"}': "100+0x300"},
        {'fleet_stream_bytes{stream="s"}': "90+0x300", 'fleet_stream_limit_bytes{stream="s"}': _ALL},
    ),
    "FleetLogWritesSlow": (
        {
            'fleet_log_append_duration_seconds_bucket{le="1.0"}': "0+9x300",
            'fleet_log_append_duration_seconds_bucket{le="5.0"}': "0+10x300",
            'fleet_log_append_duration_seconds_bucket{le="+Inf"}': "0+10x300",
        },
        {
            'fleet_log_append_duration_seconds_bucket{le="0.01"}': "0+10x300",
            'fleet_log_append_duration_seconds_bucket{le="+Inf"}': "0+10x300",
        },
    ),
    "FleetDeadLettersGrowing": (
        {'fleet_stream_messages{stream="AGENT_DLQ",instance="a"}': "0+0x110 1+0x190"},
        {
            'fleet_stream_messages{stream="AGENT_DLQ",instance="a"}': "7+0x300",
            'fleet_stream_messages{stream="AGENT_EVENTS",instance="a"}': "7+7x300",
        },
    ),
    "FleetLeaseLost": ({'fleet_lease_held{instance="a"}': _ALL}, {'fleet_lease_held{instance="a"}': "1+0x300"}),
    "FleetLeaseChurn": (
        {'fleet_leases_ended_total{instance="a"}': "0+1x300"},
        {'fleet_leases_ended_total{instance="a"}': "0+0x110 2+0x190"},
    ),
    "FleetTakeoversHigh": (
        {'fleet_execution_takeovers_total{tenant="t",instance="a"}': "0+1x300"},
        {'fleet_execution_takeovers_total{tenant="t",instance="a"}': "0+0x110 9+0x190"},
    ),
}
_EVALUATED = "2h"


def _rules() -> Mapping[str, Any]:
    rules = [rule for group in yaml.safe_load(_RULES.read_text())["groups"] for rule in group["rules"]]
    assert len(rules) == len({rule["alert"] for rule in rules})
    return {rule["alert"]: rule for rule in rules}


def _tried(alert: str, situation: Situation, *, fires: bool) -> Mapping[str, object]:
    expected = [{"labels": "{}", "value": 1}] if fires else []
    firing = f'count(count by (alertname) (ALERTS{{alertname="{alert}",alertstate="firing"}}))'
    return {
        "name": f"{alert}: {'wrong' if fires else 'well'}",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in situation.items()],
        "promql_expr_test": [{"expr": firing, "eval_time": _EVALUATED, "exp_samples": expected}],
    }


def test_every_alert_is_tried_with_what_it_asks_for_and_says_what_to_do() -> None:
    rules = _rules()
    assert set(rules) == set(_WRONG_AND_WELL) and len(rules) >= 20
    for alert, rule in rules.items():
        asked = set(re.findall(r"\b(?:fleet|process)_\w+|\bup\b", rule["expr"]))
        for situation in _WRONG_AND_WELL[alert]:
            assert asked == {name.partition("{")[0] for name in situation}, alert
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert re.fullmatch(r"\d+[mh]", rule["for"])
        assert rule["annotations"]["summary"] and rule["annotations"]["description"].endswith(".")
        # It is an expression; what is none is noticed.
        named(rule["expr"])
    for text in ("rate(", "sum)", "fleet_x{", "fleet_x ; 1", ""):
        with pytest.raises(ValueError):
            named(text)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_each_alert_fires_where_something_is_wrong_and_only_there(tmp_path: Path) -> None:
    tests = [
        _tried(alert, situation, fires=fires)
        for alert, (wrong, well) in _WRONG_AND_WELL.items()
        for situation, fires in ((wrong, True), (well, False))
    ]
    written = tmp_path / "tests.yaml"
    written.write_text(yaml.safe_dump({"rule_files": [str(_RULES)], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run(["promtool", "test", "rules", str(written)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr

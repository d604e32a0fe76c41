"""Alert rules as the Prometheus operator takes them; `python -m tests.manifests.alerts` writes the component's copy."""

from __future__ import annotations

from tests.manifests.objects import DEPLOY

SOURCE = DEPLOY.parent / "observability" / "prometheus" / "alerts.yaml"
COPY = DEPLOY / "components" / "monitoring" / "alerts.yaml"
_HEAD = """\
# Made of deploy/observability/prometheus/alerts.yaml by `python -m tests.manifests.alerts`: change it there.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: fleet
  namespace: fleet
spec:
"""


def wrapped(rules: str) -> str:
    """A file of rules as a PrometheusRule."""
    lines = [line for line in rules.splitlines(keepends=True) if not line.startswith("#")]
    return _HEAD + "".join(f"  {line}" if line.strip() else line for line in lines)


if __name__ == "__main__":
    COPY.write_text(wrapped(SOURCE.read_text()))

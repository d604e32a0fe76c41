"""An environment whose tests run with the pytest that runs this."""

from __future__ import annotations

import sys

from swe_ai_fleet.domain.environment import Environment, Mount

PYTEST = (f"{sys.prefix}/bin/python", "-m", "pytest")
# Those of this project would take most of the time that a small suite takes.
NO_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
MOUNTS = tuple(Mount(source=prefix, target=prefix) for prefix in sorted({sys.prefix, sys.base_prefix}))
WITH_PYTEST = Environment(mounts=MOUNTS, test_command=PYTEST, variables=NO_PLUGINS)

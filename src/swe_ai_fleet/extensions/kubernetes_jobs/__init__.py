"""Agents as Kubernetes Jobs: orchestrators publish assignments on NATS, a workspace runner runs them as Jobs.

`fleet` publishes them. The runner, and the programs in the containers of a job, are in the package `workers`:
images and manifests use these names.
"""

from swe_ai_fleet.extension_registry import Extension

EXTENSION = Extension(executor="fleet:open_job_fleet", settings="settings:RunnerSettings", programs=("workers",))

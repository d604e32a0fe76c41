"""Agents as Kubernetes Jobs: orchestrators hand assignments out over NATS, a workspace runner sees to their Jobs.

`fleet` hands them out. The runner, and what runs in the containers of a job, are programs of the package `workers`:
images and manifests call them by these names.
"""

from swe_ai_fleet.extensions import Extension

EXTENSION = Extension(executor="fleet:open_job_fleet", settings="settings:RunnerSettings", programs=("workers",))

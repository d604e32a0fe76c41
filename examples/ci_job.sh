#!/bin/sh
# A CI job: hands a task in, waits, and applies the winner's patch to the checkout.
#
#   TASK="Update the changelog" CHECK="make test" sh examples/ci_job.sh
#
# FLEET_SERVER (host:port) and FLEET_TOKEN name a fleet elsewhere, which is sent the repository; without them the fleet
# of this machine is asked. TASK_ID makes a job that is started again the same task: set it to the pipeline's id.
# Ends with 0 and the patch applied, with 1 where no candidate passed, otherwise as `fleet` says (see `fleet --help`).
set -eu

: "${TASK:?what is to be done}"
id="${TASK_ID:-ci-$(date +%s)-$$}"
# Not in the checkout: what is not committed there would be refused.
out="${FLEET_OUT:-$(mktemp -d)}"
set -- --task-id "$id" --agents "${AGENTS:-2}" --deliberate-only --json
[ -z "${CHECK:-}" ] || set -- "$@" --check "$CHECK"
[ -z "${FLEET_SERVER:-}" ] || set -- "$@" --server "$FLEET_SERVER" --token "$FLEET_TOKEN" --upload

# The task is data: it goes behind `--`, and never through a shell.
code=0
fleet run "$@" -- "$TASK" > "$out/fleet-result.json" || code=$?
if [ "$code" -ne 0 ]; then
    echo "fleet: no patch (exit code $code), see $out/fleet-result.json" >&2
    exit "$code"
fi

set -- --format patch --output "$out/fleet.patch"
[ -z "${FLEET_SERVER:-}" ] || set -- "$@" --server "$FLEET_SERVER" --token "$FLEET_TOKEN"
fleet export "$@" -- "$id"
git apply --index --3way "$out/fleet.patch"
echo "applied:" >&2
git diff --cached --stat

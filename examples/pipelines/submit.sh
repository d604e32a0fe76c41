# Submits a task, waits for it, takes the winner's patch. The three pipelines beside this file run it as it stands here.
# It is told by variables, never by text put into it: TASK, REPOSITORY, REVISION, TASK_ID, and where the fleet is.
set -eu
# The same TASK_ID is the same task: a step that is run again finds the execution it began.
fleet run "$TASK" --repo "$REPOSITORY" --ref "$REVISION" --agents "${AGENTS:-3}" --task-id "$TASK_ID" \
  --deliberate-only --json > /scratch/result.json
python3 -c '
import json, pathlib
result = json.loads(pathlib.Path("/scratch/result.json").read_text())
pathlib.Path("/scratch/change.patch").write_text(result["diff"])
print(result["execution_id"], result["status"])
'
test -s /scratch/change.patch

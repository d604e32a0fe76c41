/** What an execution is busy with, in a word or two. */

import type { ExecutionView } from "./view";

/** Of agents that are at work at the same time, the kind that is furthest along says it. */
const PHASES: readonly (readonly [string, string])[] = [
  ["merge", "merging"],
  ["judge", "judging"],
  ["revision", "revising"],
  ["review", "reviewing"],
  ["solver", "solving"],
  ["planner", "planning"],
];

export function phaseOf(view: ExecutionView): string {
  const task = view.task;
  if (!task) return "accepted";
  if (view.ended) return "finished";
  if (view.cancelRequested) return "cancelling";
  if (view.status === "awaiting_approval") return "waiting for a person";
  if (view.delivered) return "applied";
  if (task.workflow) return view.nodes.size ? "running nodes" : "starting";
  if (view.subtasks.length) return "working on subtasks";
  if (task.derive_subtasks) return "splitting the task";
  if (view.ranking.length) return task.kind === "orchestrate" && view.winnerId ? "applying" : "ranked";
  const kinds = new Set<string>();
  for (const agent of view.agents.values()) if (agent.status === "running") kinds.add(agent.kind);
  for (const [kind, word] of PHASES) if (kinds.has(kind)) return word;
  if (view.candidates.size) return "checking";
  if (view.checking.has("") && !view.agents.size) return "testing the untouched commit";
  return view.agents.size ? "solving" : view.owner ? "gathering context" : "waiting for its turn";
}

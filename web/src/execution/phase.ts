/** What an execution is busy with, in a word or two. */

import { STEPS, type ExecutionView, type StepName } from "./view";

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

export interface Step {
  readonly name: StepName;
  readonly state: "done" | "current" | "todo" | "skipped";
  /** How long it took, or takes so far, in milliseconds. */
  readonly ms: number;
}

/** What it has gone through and what comes; nothing of a workflow, which has a graph. */
export function stepsOf(view: ExecutionView, now: number): Step[] {
  const task = view.task;
  if (!task || task.workflow || task.kind === "plan") return [];
  const names = STEPS.filter((name) => (name !== "deliver" || task.kind === "orchestrate" || view.steps.has(name)) && (name !== "solve" || task.kind !== "judge"));
  const busy = new Set<StepName>();
  for (const agent of view.agents.values())
    if (agent.status !== "finished" && agent.status !== "lost") busy.add(agent.kind === "judge" ? "decide" : agent.kind === "review" || agent.kind === "revision" ? "examine" : "solve");
  if ([...view.checking.keys()].some(Boolean)) busy.add("examine");
  const last = names.filter((name) => view.steps.has(name)).at(-1);
  if (!busy.size && last) busy.add(last);
  return names.map((name) => {
    const span = view.steps.get(name);
    if (!span) return { name, state: view.ended ? "skipped" : "todo", ms: 0 };
    const current = !view.ended && busy.has(name);
    return { name, state: current ? "current" : "done", ms: Math.max(0, (current ? now : span.to) - span.from) };
  });
}

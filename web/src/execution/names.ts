/** What the names of runs say; the services give them. */

export type AgentKind = "solver" | "revision" | "review" | "judge" | "planner" | "merge";

const REVISION = /-r\d+$/;

/** What kind of run has such a name. */
export function kindOf(id: string): AgentKind {
  if (id === "planner") return "planner";
  if (id.startsWith("merge-")) return "merge";
  if (id.endsWith("-judges") || id.endsWith("-scored")) return "judge";
  if (id.includes("-reviews-")) return "review";
  if (REVISION.test(id)) return "revision";
  return "solver";
}

/** What evidence says of an execution and of its agents, in words and colours. */

import { words } from "../types";
import { visible } from "../visible";
import type { AgentView } from "./agent";
import type { ExecutionView } from "./view";

type Tone = "good" | "warn" | "bad" | "calm";
const OF_VERDICT: Readonly<Record<string, Tone>> = { verified: "good", unverified: "warn", refuted: "bad" };
const OF_STATUS: Readonly<Record<string, Tone>> = { completed: "good", no_winner: "warn", cancelled: "calm", rejected: "calm" };
/** The colour of what came of it: the verdict's, else the status's. */
export function toneOf(view: ExecutionView): Tone {
  const verdict = view.winnerId ? view.bestReport?.verdict : undefined;
  return (verdict && OF_VERDICT[verdict]) || OF_STATUS[view.status] || "bad";
}

/** What came of it, in a few words. */
export function headline(view: ExecutionView): string {
  if (!view.winnerId) return { completed: "Completed", timeout: "Timed out" }[view.status as string] ?? sentence(words(view.status));
  return `${visible(view.winnerId)} ${view.task?.kind === "judge" ? "is the best" : "won"}`;
}

function sentence(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** Why the best one is where it is: its evidence, and what sets it before the next. */
export function whyOf(view: ExecutionView): string[] {
  if (!view.winnerId) return view.error ? [view.error] : [];
  const ranked = view.ranking.find((one) => one.candidate_id === view.winnerId);
  const reasons = view.bestReport?.verdict ? (view.bestReport.reasons ?? []) : [];
  const ahead = /(?:^|; )(ahead of .*)$/s.exec(ranked?.reason ?? "")?.[1];
  if (!reasons.length) return ranked?.reason ? [ranked.reason] : [];
  return ahead ? [...reasons, ahead] : [...reasons];
}

/** A word for a POSIX shell: names of branches and paths are others' choice. */
export function quoted(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/** The command that shows a branch to somebody who has the repository. */
export function opening(view: ExecutionView, branch: string): string {
  const location = view.task?.repo?.location ?? "";
  if (!location.startsWith("/")) return `git fetch ${quoted(location || "origin")} ${quoted(branch)} && git switch --detach FETCH_HEAD`;
  return `git -C ${quoted(location)} ${branch.startsWith("refs/") ? "show" : "switch"} ${quoted(branch)}`;
}

/** What checks say of an agent's candidate: its verdict, or whether it was accepted; empty where nothing is known. */
export function verdictOf(view: ExecutionView, agent: AgentView): string {
  const candidate = view.candidates.get(agent.id) ?? [...view.candidates.values()].find((one) => one.agent_id === agent.id);
  const report = candidate && view.reports.get(candidate.candidate_id);
  if (!report) return "";
  if (report.verdict) return report.verdict;
  return report.results.every((one) => one.passed || one.skipped_reason || !one.required) ? "" : "failed";
}

/** Whether the answer stands in a step already: then it is not told twice. */
export function repeated(agent: AgentView): boolean {
  return agent.items.some((item) => item.kind === "reply" && item.content.trim() === agent.answer.trim());
}

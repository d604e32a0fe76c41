/** What the page shows of an execution: a fold over its events, as the server's own, with the agents' steps kept. */

import { added, NOTHING_SPENT } from "./events";
import type {
  ApprovalRequest, Baseline, Candidate, CheckReport, Critique, Delivered, Examination, GatheredContext, HandDelivery,
  NodeUpdate, Ranked, Resolution, RunningChecks, StoredEvent, Subtask, SubtaskOutcome, Task, Usage, Vote,
} from "./events";
import { AgentView, type AgentStatus } from "./agent";
import { kindOf } from "./names";

export type ExecutionStatus =
  | "pending"
  | "in_progress"
  | "completed"
  | "no_winner"
  | "failed"
  | "timeout"
  | "cancelled"
  | "awaiting_approval"
  | "rejected";

const OPEN: ReadonlySet<string> = new Set(["pending", "in_progress", "awaiting_approval"]);
const EXECUTION_SUBJECTS: ReadonlySet<string> = new Set(["_", "~", ""]);
/** So many events are kept for the list of raw ones. */
export const KEPT_EVENTS = 20_000;

/** What an execution goes through, in this order; two may overlap. */
export const STEPS = ["solve", "examine", "decide", "deliver"] as const;
export type StepName = (typeof STEPS)[number];

/** From when to when, in milliseconds since the epoch. */
export interface Span {
  readonly from: number;
  readonly to: number;
}

/** An execution as its events tell it; changed in place, `revision` counts the changes. */
export class ExecutionView {
  // Not private to the instance (#): `again` hands its parts on to another one.
  revision = 0;
  sequence = 0;
  task: Task | null = null;
  baseCommit = "";
  status: ExecutionStatus = "pending";
  startedAt = 0;
  updatedAt = 0;
  finishedAt = 0;
  owner = "";
  cancelRequested = false;
  cancelReason = "";
  error = "";
  usage: Usage = NOTHING_SPENT;
  durationMs = 0;
  agents = new Map<string, AgentView>();
  candidates = new Map<string, Candidate>();
  reports = new Map<string, CheckReport>();
  critiques: Critique[] = [];
  dropped = new Map<string, string>();
  votes: Vote[] = [];
  ranking: Ranked[] = [];
  examination: Examination | null = null;
  winnerId = "";
  delivered: Delivered | null = null;
  deliveryReport: CheckReport | null = null;
  baseline: Baseline | null = null;
  baselineError = "";
  /** Checks under way by candidate; those of the untouched commit under the empty name. */
  checking = new Map<string, RunningChecks>();
  /** Where the best candidate is kept where nobody won. */
  refusedKept: { candidate_id: string; delivered: Delivered } | null = null;
  handDeliveries: HandDelivery[] = [];
  subtasks: Subtask[] = [];
  subtaskExecutions = new Map<string, string>();
  subtaskOutcomes = new Map<string, SubtaskOutcome>();
  nodes = new Map<string, NodeUpdate>();
  steering: { action: string; node_id: string; by: string }[] = [];
  output = "";
  requests = new Map<string, ApprovalRequest>();
  resolutions = new Map<string, Resolution>();
  context: GatheredContext | null = null;
  contextError = "";
  steps = new Map<StepName, Span>();
  events: StoredEvent[] = [];
  forgotten = 0;
  /** Its beginning is not in the log any more. */
  beheaded = false;
  private asked = new Map<string, string>();

  get ended(): boolean {
    return !OPEN.has(this.status);
  }

  /** The evidence about what was delivered, else about the winner, or the best where nobody won. */
  get bestReport(): CheckReport | null {
    return this.deliveryReport ?? this.reports.get(this.winnerId || (this.ranking[0]?.candidate_id ?? "")) ?? null;
  }

  /** What waits for a person, in the order in which it was asked. */
  get pending(): ApprovalRequest[] {
    if (this.ended) return [];
    return [...this.requests.values()].filter((one) => !this.resolutions.has(one.approval_id));
  }

  /** What all agents have spent as far as is known; at the end what the execution says itself. */
  get spent(): Usage {
    if (this.ended && this.usage.model_calls) return this.usage;
    let sum = NOTHING_SPENT;
    for (const agent of this.agents.values()) sum = added(sum, agent.usage);
    return sum;
  }

  /** Take over the verdict that a candidate has beside the others. */
  private judge(ranked: Ranked): void {
    if (!ranked.verdict_reasons?.length) return;
    for (const name of [ranked.candidate_id, ...ranked.duplicates]) {
      const report = this.reports.get(name);
      if (report) this.reports.set(name, { ...report, verdict: ranked.verdict ?? null, reasons: ranked.verdict_reasons });
    }
  }

  /** The same under another identity, for those who look whether it is another; only the last one is to be used. */
  again(): ExecutionView {
    return Object.assign(new ExecutionView(), this);
  }

  /** Take in one more event; false where it was known. */
  apply(event: StoredEvent): boolean {
    if (event.sequence <= this.sequence) return false;
    this.sequence = event.sequence;
    this.revision += 1;
    this.updatedAt = event.at_ms;
    this.keep(event);
    const body = event.payload;
    if (event.type === "execution_started") {
      if (this.task) return true;
      this.task = body.task as Task;
      this.baseCommit = ((body.repository as { commit?: string } | undefined)?.commit) ?? "";
      this.startedAt = event.at_ms;
      return true;
    }
    if (!this.task && !this.beheaded) {
      this.beheaded = true;
      this.startedAt = event.at_ms;
      if (this.status === "pending") this.status = "in_progress";
    }
    if (event.type === "candidate_delivered") this.handDeliveries.push(body as unknown as HandDelivery);
    // What was on its way when it ended changes nothing any more.
    if (this.ended) return true;
    const step = stepOf(event);
    if (step) this.extend(step, event.at_ms);
    if (EXECUTION_SUBJECTS.has(event.agent_id)) this.takeOwn(event, body);
    else this.takeAgents(event, body);
    return true;
  }

  private extend(step: StepName, at: number): void {
    // Ranking and delivering say only when they are done: they began when what comes before them was.
    const before = STEPS.slice(0, STEPS.indexOf(step)).map((name) => this.steps.get(name)?.to ?? 0);
    const since = step === "decide" || step === "deliver" ? Math.max(...before) || at : at;
    this.steps.set(step, { from: this.steps.get(step)?.from ?? since, to: at });
  }

  /** A piece of what a model says; kept nowhere else. */
  hear(agentId: string, text: string, begins = false): void {
    if (this.ended) return;
    this.revision += 1;
    this.agent(agentId).hear(text, begins);
  }

  agent(id: string): AgentView {
    let found = this.agents.get(id);
    if (!found) {
      found = new AgentView(id);
      this.agents.set(id, found);
    }
    return found;
  }

  private takeOwn(event: StoredEvent, body: Record<string, unknown>): void {
    switch (event.type) {
      case "execution_claimed":
        this.owner = String(body.owner ?? "");
        this.status = "in_progress";
        this.stand();
        break;
      case "execution_finished":
        this.status = body.status as ExecutionStatus;
        this.winnerId = String(body.winner_id ?? "");
        this.error = String(body.error ?? "");
        this.usage = added(NOTHING_SPENT, body.usage as Usage | undefined);
        this.durationMs = Number(body.duration_ms ?? 0);
        this.finishedAt = event.at_ms;
        this.checking.clear();
        for (const agent of this.agents.values()) agent.executionEnded(this.status);
        break;
      default:
        this.takeShared(event, body);
    }
  }

  private takeAgents(event: StoredEvent, body: Record<string, unknown>): void {
    const agent = this.agent(event.agent_id);
    switch (event.type) {
      case "run_claimed":
        if (!body.resumes) this.withdraw(event.agent_id);
        agent.apply(event);
        break;
      case "run_finished":
        agent.apply(event);
        this.withdraw(event.agent_id);
        break;
      case "approval_requested":
        agent.apply(event);
        this.ask(body.request as ApprovalRequest);
        break;
      default:
        if (!this.takeShared(event, body)) agent.apply(event);
    }
  }

  /** What either may say; false where it is something else. */
  private takeShared(event: StoredEvent, body: Record<string, unknown>): boolean {
    switch (event.type) {
      case "cancel_requested":
        this.cancelRequested = true;
        this.cancelReason ||= String(body.reason ?? "");
        return true;
      case "approval_requested":
      case "approval_awaited": {
        const request = body.request as ApprovalRequest;
        if (!this.requests.has(request.approval_id)) this.ask(request);
        return true;
      }
      case "approval_resolved": {
        const resolution = body.resolution as Resolution;
        if (!this.resolutions.has(resolution.approval_id)) this.resolutions.set(resolution.approval_id, resolution);
        const agentId = this.asked.get(resolution.approval_id);
        if (agentId) this.agent(agentId).resolved(resolution);
        this.stand();
        return true;
      }
      case "context_gathered":
        this.context = body.context as GatheredContext;
        this.contextError = String(body.error ?? "");
        return true;
      case "candidate_submitted": {
        const candidate = body.candidate as Candidate;
        this.candidates.set(candidate.candidate_id, candidate);
        return true;
      }
      case "checks_started":
        this.checking.set(String(body.candidate_id ?? ""), { command: String(body.command ?? ""), since: event.at_ms });
        return true;
      case "baseline_finished":
        this.baseline = (body.baseline as Baseline | null) ?? null;
        this.baselineError = String(body.error ?? "");
        this.checking.delete("");
        return true;
      case "checks_finished": {
        const report = body.report as CheckReport;
        this.reports.set(report.candidate_id, report);
        this.checking.delete(report.candidate_id);
        return true;
      }
      case "refused_kept":
        this.refusedKept = body as unknown as { candidate_id: string; delivered: Delivered };
        return true;
      case "candidate_reviewed": {
        const critique = body.critique as Critique;
        this.critiques = [...this.critiques.filter((one) => !sameReview(one, critique)), critique];
        return true;
      }
      case "revision_judged":
        if (!body.kept) this.dropped.set(String(body.candidate_id), String(body.reason ?? ""));
        return true;
      case "votes_cast": {
        const votes = body.votes as Vote[];
        const judges = new Set(votes.map((one) => one.judge_id));
        this.votes = [...this.votes.filter((one) => !judges.has(one.judge_id)), ...votes];
        return true;
      }
      case "candidates_examined":
        this.examination = body.examination as Examination;
        return true;
      case "candidates_ranked":
        this.ranking = body.ranking as Ranked[];
        for (const ranked of this.ranking) this.judge(ranked);
        this.winnerId = String(body.winner_id ?? "");
        return true;
      case "winner_delivered":
        this.delivered = body.delivered as Delivered;
        this.deliveryReport = body.report as CheckReport;
        return true;
      case "subtasks_derived":
        this.subtasks = (body.derivation as { subtasks: Subtask[] }).subtasks;
        return true;
      case "subtask_started":
        this.subtaskExecutions.set(String(body.subtask_id), String(body.execution_id));
        return true;
      case "subtask_ended": {
        const outcome = body.outcome as SubtaskOutcome;
        this.subtaskOutcomes.set(outcome.subtask_id, outcome);
        return true;
      }
      case "node_updated": {
        const update = body as unknown as NodeUpdate;
        this.nodes.set(update.node_id, update);
        return true;
      }
      case "breakpoints_set":
        this.steering.push(body as unknown as { action: string; node_id: string; by: string });
        return true;
      case "workflow_finished":
        this.output = String(body.output ?? "");
        return true;
      case "run_lost": {
        const id = String(body.lost_agent_id);
        this.agent(id).lost(String(body.reason ?? ""), event.at_ms);
        this.withdraw(id);
        return true;
      }
      case "run_stopped": {
        const id = String(body.stopped_agent_id);
        this.agent(id).stopped(String(body.reason ?? ""), event.at_ms);
        this.withdraw(id);
        return true;
      }
      case "run_reassigned":
        this.agent(String(body.lost_agent_id)).reassigned(
          Number(body.attempt ?? 2),
          String(body.reason ?? ""),
          event.at_ms,
        );
        return true;
      default:
        return false;
    }
  }

  private ask(request: ApprovalRequest): void {
    this.asked.set(request.approval_id, request.agent_id);
    if (this.resolutions.has(request.approval_id)) return;
    this.requests.set(request.approval_id, request);
    const agent = this.agent(request.agent_id);
    agent.status = "awaiting_approval";
    agent.revision += 1;
    this.stand();
  }

  private withdraw(agentId: string): void {
    for (const [name, request] of this.requests)
      if (request.agent_id === agentId && !this.resolutions.has(name)) this.requests.delete(name);
    this.stand();
  }

  /** An agent that waits for nothing is at work again. */
  private stand(): void {
    if (this.ended || this.status === "pending") return;
    const waiting = new Set(this.pending.map((one) => one.agent_id));
    for (const agent of this.agents.values()) {
      if (agent.status !== "awaiting_approval" || waiting.has(agent.id)) continue;
      agent.status = "running" satisfies AgentStatus;
      agent.revision += 1;
    }
    this.status = waiting.size ? "awaiting_approval" : "in_progress";
  }

  private keep(event: StoredEvent): void {
    this.events.push(event);
    if (this.events.length > KEPT_EVENTS * 1.1) {
      const surplus = this.events.length - KEPT_EVENTS;
      this.events.splice(0, surplus);
      this.forgotten += surplus;
    }
  }
}

const OF_KIND: Readonly<Record<string, StepName>> = { solver: "solve", review: "examine", revision: "examine", judge: "decide" };

/** What an event is a part of; nothing for those that are told of no step. */
function stepOf({ type, agent_id, payload }: StoredEvent): StepName | undefined {
  switch (type) {
    case "run_claimed":
    case "run_finished":
      return OF_KIND[kindOf(agent_id)];
    case "candidate_submitted":
      return (payload.candidate as Candidate).revises ? "examine" : "solve";
    case "checks_started":
    case "checks_finished":
      return payload.candidate_id === "" ? undefined : "examine";
    case "candidate_reviewed":
    case "revision_judged":
    case "candidates_examined":
      return "examine";
    case "votes_cast":
    case "candidates_ranked":
      return "decide";
    case "winner_delivered":
    case "refused_kept":
      return "deliver";
    default:
      return undefined;
  }
}

function sameReview(one: Critique, other: Critique): boolean {
  return (
    one.round === other.round && one.reviewer_id === other.reviewer_id && one.candidate_id === other.candidate_id
  );
}

import assert from "node:assert/strict";
import { test } from "node:test";
import { readStudy } from "../src/batch/study";
import { summaryOf } from "../src/batch/summary";
import type { StoredEvent } from "../src/execution/events";
import { matrixOf } from "../src/execution/matrix";
import { stepsOf } from "../src/execution/phase";
import { headline, opening, quoted, repeated, toneOf, verdictOf, whyOf } from "../src/execution/verdict";
import { ExecutionView } from "../src/execution/view";
import { busyOf, faultsOf, slowOf } from "../src/fleet/answers";
import type { Metrics, Status } from "../src/fleet/calls";
import { sentenceOf, type Advice, type Recommendation } from "../src/submission/advice";
import { emptyForm, formAgain, repository } from "../src/submission/form";
import type { Execution } from "../src/types";

const check = (name: string, passed: boolean, failing: string[] = []) => ({
  kind: name, name, passed, required: true, score: 1, message: "", output: "", exit_code: 0, problems: [], warnings: 0,
  tests: name === "tests" ? { passed: 1, failed: failing.length, errors: 0, skipped: 0, duration_ms: 1, failing } : null,
  details: {}, duration_ms: 5, skipped_reason: "",
});
const candidate = (id: string) => ({ candidate_id: id, agent_id: id, role: "DEV", summary: "", stop_reason: "final_answer", submitted_at: "", artifacts: { patch: null, files_changed: [], insertions: 1, deletions: 0, commit_sha: "", branch: "", tests: null } });

/** An execution of two agents, of which the second wins; a second passes with each event. */
function told(...more: [string, string, Record<string, unknown>][]): ExecutionView {
  const view = new ExecutionView();
  const events: [string, string, Record<string, unknown>][] = [
    ["execution_started", "_", { task: { task_id: "t", kind: "orchestrate", description: "d", role: "DEV", repo: { location: "/srv/my repo" } } }],
    ["execution_claimed", "_", { owner: "o" }],
    ["run_claimed", "agent-dev-1", {}],
    ["run_claimed", "agent-dev-2", {}],
    ["run_finished", "agent-dev-1", { stop_reason: "final_answer", answer: "Done." }],
    ["candidate_submitted", "agent-dev-1", { candidate: candidate("agent-dev-1") }],
    ["checks_started", "_", { candidate_id: "agent-dev-1", command: "pytest" }],
    ["run_finished", "agent-dev-2", { stop_reason: "final_answer", answer: "Did it." }],
    ["candidate_submitted", "agent-dev-2", { candidate: candidate("agent-dev-2") }],
    ["checks_finished", "_", { report: { candidate_id: "agent-dev-1", results: [check("policy", true), check("tests", false, ["test_a"])], verdict: "refuted", reasons: ["1 test fails"] } }],
    ["checks_finished", "_", { report: { candidate_id: "agent-dev-2", results: [check("policy", true), check("tests", true)], verdict: "unverified", reasons: ["2 passed"] } }],
    ...more,
  ];
  events.forEach(([type, agent_id, payload], at) =>
    view.apply({ sequence: at + 1, event_id: `${at}`, agent_id, type, at_ms: (at + 1) * 1000, payload } as StoredEvent),
  );
  return view;
}
const RANKED: [string, string, Record<string, unknown>] = ["candidates_ranked", "_", {
  winner_id: "agent-dev-2",
  ranking: [{ candidate_id: "agent-dev-2", rank: 1, score: 1, accepted: true, duplicates: [], reason: "unverified: 2 passed; ahead of agent-dev-1: that one is refuted" }],
}];
const DELIVERED: [string, string, Record<string, unknown>] = ["winner_delivered", "_", { delivered: { branch: "fleet/t", commit_sha: "abc", pushed: false }, report: { candidate_id: "agent-dev-2", results: [], verdict: "unverified", reasons: ["2 passed"] } }];
const END: [string, string, Record<string, unknown>] = ["execution_finished", "_", { status: "completed", winner_id: "agent-dev-2" }];

test("colours and words follow the verdict, not the answer", () => {
  const view = told(RANKED, DELIVERED, END);
  assert.deepEqual([...view.agents.values()].map((agent) => verdictOf(view, agent)), ["refuted", "unverified"]);
  assert.deepEqual([toneOf(view), headline(view)], ["warn", "agent-dev-2 won"]);
  assert.deepEqual(whyOf(view), ["2 passed", "ahead of agent-dev-1: that one is refuted"]);
  const lost = told(["execution_finished", "_", { status: "no_winner", winner_id: "", error: "no candidate passed" }]);
  assert.deepEqual([toneOf(lost), headline(lost), whyOf(lost)], ["warn", "No winner", ["no candidate passed"]]);
  const failed = told(["execution_finished", "_", { status: "timeout", winner_id: "", error: "" }]);
  assert.deepEqual([toneOf(failed), headline(failed)], ["bad", "Timed out"]);
});

test("the steps say where it is and what each took; two may overlap", () => {
  const line = (view: ExecutionView, now: number) => stepsOf(view, now).map((one) => `${one.name} ${one.state} ${one.ms}`);
  assert.deepEqual(line(told(), 20_000), ["solve done 6000", "examine current 13000", "decide todo 0", "deliver todo 0"]);
  assert.deepEqual(line(told(RANKED, DELIVERED, END), 99_000), ["solve done 6000", "examine done 4000", "decide done 1000", "deliver done 1000"]);
  assert.deepEqual(line(told(["execution_finished", "_", { status: "cancelled" }]), 99_000).slice(2), ["decide skipped 0", "deliver skipped 0"]);
});

test("the matrix has each check and each failing test on each candidate", () => {
  const view = told();
  view.baseline = { duration_ms: 1, suites: [{ command: "pytest", tests: { passed: 1, failed: 1, errors: 0, skipped: 0, duration_ms: 1, failing: ["test_old"] }, uncollected: [], hung: [], exit_code: 1, stopped: "", unusable: "" }] };
  const rows = matrixOf(view, ["agent-dev-1", "agent-dev-2"]).map((row) => [row.name, row.before, ...row.on.values()]);
  assert.deepEqual(rows, [
    ["policy", "unknown", "passed", "passed"],
    ["tests", "unknown", "failed", "passed"],
    ["test_a", "passed", "failed", "passed"],
    ["test_old", "failed", "passed", "passed"],
  ]);
});

test("a command that is copied cannot be made another one by a name", () => {
  assert.equal(opening(told(), "fleet/t"), "git -C '/srv/my repo' switch fleet/t");
  assert.equal(quoted("a;rm -rf ~"), "'a;rm -rf ~'");
  assert.equal(quoted("it's"), "'it'\\''s'");
  assert.equal(quoted("x\n$(id)"), "'x\n$(id)'");
});

test("an answer that stands in a step is not told again", () => {
  const view = told();
  const [first] = [...view.agents.values()];
  assert.ok(first);
  assert.equal(repeated(first), false);
  first.items.push({ key: "k", at: 0, step: 1, kind: "reply", content: " Done.\n", calls: [], usage: view.usage, durationMs: 1, finishReason: "", repairs: [] });
  assert.equal(repeated(first), true);
});

test("a recommendation is a sentence that says what is known and what is a trial", () => {
  const option = (value: string, tried: number, best: number) => ({ value, tried, expected: 0, low: 0, high: 1, best });
  const agents: Advice = { choice: "agents", value: "5", reason: "", options: [option("5", 0, 0.5), option("3", 1, 0.46)] };
  const said: Recommendation = { goal_type: "feature", outcomes: 1, agents, approach: { choice: "approach", value: "deliberate/simple", reason: "", options: [option("deliberate/simple", 3, 0.46), option("x", 1, 0.1)] } };
  assert.equal(sentenceOf(said, new Map()), "1 feature outcome suggests 5 agents (a trial: not tried yet), deliberate with simple planning (46 % likely best).");
  assert.match(sentenceOf({ ...said, outcomes: 0 }, new Map()), /^No feature task has ended yet/);
});

test("one field takes a path or a URL, and a task runs again under another id", () => {
  const at = (repo: string) => repository({ ...emptyForm(), repo, uncommitted: "INCLUDE" });
  assert.deepEqual(at(" /srv/app "), { path: "/srv/app", uncommitted: "UNCOMMITTED_CHANGES_INCLUDE" });
  assert.deepEqual(at("https://example.org/a.git"), { url: "https://example.org/a.git" });
  assert.deepEqual(at("git@example.org:a.git"), { url: "git@example.org:a.git" });
  const again = formAgain({ kind: "EXECUTION_KIND_DELIBERATION", role: "ROLE_QA", task_description: "d", repository: "/srv/app", agent_count: 2 });
  assert.deepEqual([again.mode, again.role, again.text, again.repo, again.agents], ["deliberate", "QA", "d", "/srv/app", "2"]);
  assert.notEqual(again.taskId, emptyForm().taskId);
});

test("a study is read, and what is none, or a hostile one, is not", () => {
  const rate = { passed: 3, of: 4, low: 0.3, high: 0.95 };
  const arm = { candidates: 3, without: "reviews", passed: rate, verified: rate, resolved: null, tokens: 100, median_seconds: 2 };
  const study = readStudy(JSON.stringify({ study: "s", missing: 1, arms: [arm, { candidates: 1 }, null] }));
  assert.deepEqual([study?.name, study?.missing, study?.arms.map((one) => one.name)], ["s", 1, ["3 candidates without reviews"]]);
  for (const text of ["", "null", "[]", '{"arms": 7}', '{"arms": [{}]}', "<script>"]) assert.equal(readStudy(text), undefined, text);
  assert.equal(readStudy(JSON.stringify({ arms: [{ ...arm, passed: { ...rate, low: -1e308, high: 1e308 } }] }))?.arms[0]?.passed.high, 1);
});

test("a batch is told in a line", () => {
  const row = (status: string, verdict: string, took: number) => ({ status: `DELIBERATION_STATUS_${status}`, verdict: `EVIDENCE_VERDICT_${verdict}`, winner_id: verdict === "VERIFIED" ? "a" : "", created_at_ms: 1000, finished_at_ms: took ? 1000 + took : 0, usage: { prompt_tokens: 5, completion_tokens: 1 } }) as unknown as Execution;
  assert.equal(
    summaryOf([row("COMPLETED", "VERIFIED", 2000), row("NO_WINNER", "REFUTED", 4000), row("IN_PROGRESS", "UNSPECIFIED", 0)]),
    "2 of 3 tasks ended · 1 verified · 1 no winner · 1 in progress · 18 tokens · median 4.0 s",
  );
});

test("a fleet answers whether it is healthy, busy, and what is slow", () => {
  const status = { status: "degraded", uptime_seconds: 1, components: [{ name: "nats", state: "COMPONENT_STATE_UP", message: "", version: "", latency_ms: 1 }, { name: "model", state: "COMPONENT_STATE_DOWN", message: "refused", version: "", latency_ms: 0 }], queue: { waiting: 0, oldest_wait_ms: 0, max_waiting: 10, driven: 3, awaiting_approval: 2 } } as Status;
  assert.deepEqual(faultsOf(status), ["model is down: refused"]);
  assert.equal(busyOf(status), "1 running, 2 awaiting approval; none queued");
  const latency = (operation: string, p95_ms: number) => ({ operation, count: 1, p50_ms: 1, p95_ms, p99_ms: 0 });
  const metrics = { latencies: [latency("agent", 9000), latency("check", 2000), latency("model_call", 3000)] } as Metrics;
  assert.equal(slowOf(metrics), "model call 1 ms, at worst 3.0 s; check 1 ms, at worst 2.0 s.");
});

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import type { StoredEvent } from "../src/execution/events";
import { baselineLine } from "../src/execution/baseline";
import { kindOf } from "../src/execution/names";
import { phaseOf } from "../src/execution/phase";
import { ExecutionView } from "../src/execution/view";
import { laidOut } from "../src/graph/layout";
import { planGraph, subtaskGraph, workflowGraph } from "../src/graph/model";

declare const GOLDEN: string;

/** One stored event of each kind, by its kind. */
const golden = new Map(
  readdirSync(GOLDEN).map((name) => {
    const read = JSON.parse(readFileSync(join(GOLDEN, name), "utf8")) as { agent_id: string; body: { type: string } };
    return [read.body.type, read] as const;
  }),
);

function event(sequence: number, type: string, agent: string, more: Record<string, unknown> = {}): StoredEvent {
  const payload = structuredClone(golden.get(type)?.body ?? { type }) as Record<string, unknown>;
  return {
    sequence,
    event_id: `e/${agent}/1/${sequence}`,
    agent_id: agent,
    type,
    at_ms: sequence * 1000,
    payload: { ...payload, ...more },
  };
}

function begun(): ExecutionView {
  const view = new ExecutionView();
  view.apply(event(1, "execution_started", "_"));
  view.apply(event(2, "execution_claimed", "_"));
  return view;
}

test("every kind of stored event can be taken in", () => {
  assert.ok(golden.size >= 35);
  const view = begun();
  let sequence = 2;
  const ends = ["execution_started", "execution_finished"];
  for (const type of [...golden.keys()].filter((one) => !ends.includes(one))) {
    sequence += 1;
    assert.ok(view.apply(event(sequence, type, type.startsWith("execution_") ? "_" : "agent-1")), type);
  }
  view.apply(event(sequence + 1, "execution_finished", "_"));
  assert.equal(view.status, "no_winner");
  assert.equal(view.events.length, sequence + 1);
  assert.equal(view.candidates.get("candidate-1")?.artifacts.files_changed[0], "src/über.py");
  assert.equal(view.reports.get("candidate-1")?.results[0]?.name, "unit");
  assert.equal(view.delivered?.branch, "fix");
  assert.equal(view.votes[0]?.choice, "candidate-1");
  assert.equal(view.nodes.get("fix/check[1]")?.status, "completed");
  assert.equal(view.subtaskOutcomes.get("api")?.status, "completed");
  assert.equal(view.pending.length, 0);
});

test("verdicts, what is being run, what is kept and what people delivered", () => {
  const view = begun();
  view.apply(event(3, "checks_started", "_", { candidate_id: "" }));
  assert.equal(phaseOf(view), "testing the untouched commit");
  assert.deepEqual(view.checking.get(""), { command: "python3 -m pytest -q", since: 3000 });
  view.apply(event(4, "baseline_finished", "_", { error: "" }));
  assert.equal(view.checking.size, 0);
  assert.equal(
    baselineLine(view.baseline, view.baselineError),
    "no",
  );
  const suite = view.baseline?.suites[0];
  assert.ok(suite?.tests);
  const usable = { ...suite, unusable: "", stopped: "" };
  assert.equal(
    baselineLine({ suites: [usable], duration_ms: 1 }, ""),
    "9 pass, 1 fail: tests/test_a.py::test_b, 2 skipped; cannot be collected: tests/test_x.py: No module named y; " +
      "hangs: tests/test_a.py::test_slow",
  );
  assert.equal(baselineLine(null, "pip failed"), "none: pip failed");
  view.apply(event(5, "checks_finished", "_"));
  assert.equal(view.bestReport, null);
  view.apply(event(6, "candidates_ranked", "_", { winner_id: "" }));
  assert.equal(view.bestReport?.verdict, "verified");
  view.apply(event(6.25, "candidates_examined", "_"));
  assert.deepEqual(view.examination?.sets[0]?.crossings.map((one) => [one.candidate_id, one.passed.length]), [
    ["candidate-2", 1],
  ]);
  const beside = { ...view.ranking[0], verdict: "unverified", verdict_reasons: ["1 test of candidate-2 fails: t"] };
  view.apply(event(6.5, "candidates_ranked", "_", { winner_id: "", ranking: [beside] }));
  assert.deepEqual([view.bestReport?.verdict, view.bestReport?.reasons], ["unverified", beside.verdict_reasons]);
  view.apply(event(7, "refused_kept", "_"));
  assert.equal(view.refusedKept?.delivered.branch, "refs/fleet/refused/task-1");
  view.apply(event(8, "execution_finished", "_"));
  view.apply(event(9, "candidate_delivered", "~"));
  assert.deepEqual(view.handDeliveries.map((one) => [one.candidate_id, one.by]), [["candidate-1", "ana"]]);
});

test("an event that is known changes nothing", () => {
  const view = begun();
  const asked = event(3, "approval_requested", "agent-1");
  assert.equal(view.apply(asked), true);
  const before = view.revision;
  assert.equal(view.apply(asked), false);
  assert.equal(view.revision, before);
  assert.equal(view.events.length, 3);
});

test("a call meets its result, and its item is another one then", () => {
  const view = begun();
  view.apply(event(3, "run_started", "agent-1"));
  view.apply(event(4, "model_replied", "agent-1"));
  const before = view.agent("agent-1").items[0];
  view.apply(event(5, "tool_finished", "agent-1"));
  const after = view.agent("agent-1").items[0];
  assert.ok(before?.kind === "reply" && after?.kind === "reply");
  assert.notEqual(before, after);
  assert.equal(before.calls[0]?.outcome, "waiting");
  assert.equal(after.calls[0]?.outcome, "refused");
  assert.equal(after.calls[0]?.error, "not allowed");
  assert.equal(view.agent("agent-1").usage.tool_calls, 3);
});

test("what waits is there until it is decided, and the status says so", () => {
  const view = begun();
  view.apply(event(3, "approval_requested", "agent-1"));
  assert.equal(view.status, "awaiting_approval");
  assert.equal(phaseOf(view), "waiting for a person");
  view.apply(event(4, "approval_awaited", "_"));
  assert.deepEqual(view.pending.map((one) => one.approval_id), ["agent-1/1-1"]);
  // The agent's own words are fuller than what the execution heard.
  assert.deepEqual(view.pending[0]?.reasons, ["destructive"]);
  view.apply(event(5, "approval_resolved", "_"));
  assert.equal(view.pending.length, 0);
  assert.equal(view.status, "in_progress");
  assert.equal(view.agent("agent-1").status, "running");
  const item = view.agent("agent-1").items.at(-1);
  assert.equal(item?.kind === "approval" && item.resolution?.decision, "adjusted");
});

test("who begins anew, or ends, no longer waits", () => {
  const again = begun();
  again.apply(event(3, "approval_requested", "agent-1"));
  again.apply(event(4, "run_claimed", "agent-1", { resumes: false }));
  assert.equal(again.pending.length, 0);
  const resumed = begun();
  resumed.apply(event(3, "approval_requested", "agent-1"));
  resumed.apply(event(4, "run_claimed", "agent-1", { resumes: true }));
  assert.equal(resumed.pending.length, 1);
});

test("what comes after the end is listed and changes nothing else", () => {
  const view = begun();
  view.apply(event(3, "execution_finished", "_", { status: "cancelled" }));
  view.apply(event(4, "candidate_submitted", "agent-1"));
  assert.equal(view.candidates.size, 0);
  assert.equal(view.events.length, 4);
  assert.equal(view.ended, true);
});

test("a piece of speech is shown until the reply is there", () => {
  const view = begun();
  view.hear("agent-1", "Let me ", true);
  view.hear("agent-1", "look.");
  assert.equal(view.agent("agent-1").speech, "Let me look.");
  view.apply(event(3, "model_replied", "agent-1"));
  assert.equal(view.agent("agent-1").speech, "");
  // A piece that is late is in the reply already; what begins is new, whatever it says.
  const said = view.agent("agent-1").items.at(-1);
  assert.ok(said?.kind === "reply" && said.content.length > 2);
  view.hear("agent-1", said.content.slice(-3));
  assert.equal(view.agent("agent-1").speech, "");
  view.hear("agent-1", said.content.slice(-3), true);
  assert.equal(view.agent("agent-1").speech, said.content.slice(-3));
});

test("the same view under another identity goes on where it was", () => {
  const view = begun();
  view.apply(event(3, "approval_requested", "agent-1"));
  const next = view.again();
  assert.notEqual(next, view);
  next.apply(event(4, "approval_resolved", "_"));
  assert.equal(next.pending.length, 0);
  assert.equal(next.sequence, 4);
});

test("names say what kind of run it is", () => {
  assert.deepEqual(
    ["agent-dev-1", "agent-dev-1-r1", "agent-dev-2-reviews-agent-dev-1-1", "agent-dev-1-judges", "planner", "merge-api-0123"].map(
      kindOf,
    ),
    ["solver", "revision", "review", "judge", "planner", "merge"],
  );
});

test("graphs have the states of their nodes, and each box its place", () => {
  const view = begun();
  view.apply(event(3, "subtasks_derived", "_", {
    derivation: {
      subtasks: [
        { subtask_id: "model", description: "", role: "DEV", dependencies: [], priority: 0 },
        { subtask_id: "api", description: "", role: "QA", dependencies: ["model"], priority: 0 },
      ],
    },
  }));
  view.apply(event(4, "subtask_started", "_"));
  view.apply(event(5, "plan_made", "agent-1"));
  const subtasks = subtaskGraph(view);
  assert.ok(subtasks);
  assert.deepEqual(subtasks.nodes.map((node) => node.status), ["pending", "running"]);
  const { boxes, arrows } = laidOut(subtasks);
  assert.equal(arrows.length, 1);
  assert.ok((boxes[0]?.y ?? 0) < (boxes[1]?.y ?? 0));
  assert.equal(planGraph(view.agent("agent-1"))?.nodes[0]?.status, "pending");
  assert.equal(workflowGraph(view), null);
  assert.equal(laidOut({ title: "", nodes: [], edges: [] }).boxes.length, 0);
});

test("ten thousand events of three hundred agents are taken in at once", () => {
  const view = begun();
  const begunAt = performance.now();
  for (let number = 0; number < 10_000; number += 1) {
    const agent = `agent-dev-${number % 300}`;
    const call = { call_id: `c${number}`, model_call_id: "", name: "shell_run_command", arguments: "{}" };
    const even = Math.floor(number / 300) % 2 === 0;
    const made = even
      ? event(number + 3, "model_replied", agent, {
          step: number,
          reply: { message: { content: "x", tool_calls: [call] }, usage: {} },
        })
      : event(number + 3, "tool_finished", agent, {
          entry: { ...(golden.get("tool_finished")?.body as { entry?: object }).entry, call_id: `c${number - 300}` },
        });
    assert.ok(view.apply(made));
  }
  assert.ok(performance.now() - begunAt < 3_000);
  assert.equal(view.agents.size, 300);
  const last = view.agent("agent-dev-1").items[0];
  assert.equal(last?.kind === "reply" && last.calls[0]?.outcome, "refused");
});

import assert from "node:assert/strict";
import { test } from "node:test";
import { fileName } from "../src/execution/artifact";
import type { ApprovalRequest, StoredEvent } from "../src/execution/events";
import { memoryOf, readMemory } from "../src/execution/memory";
import { ExecutionView } from "../src/execution/view";
import { heardAt, serverNow } from "../src/clock";
import { visible } from "../src/visible";

const REQUEST: ApprovalRequest = {
  approval_id: "a/1-1",
  agent_id: "a",
  policy: "plan",
  goal: "g",
  approach: "p",
  call: { call_id: "c", name: "propose_approach", arguments: "{}" },
  step: 1,
  requested_at: "",
  expires_at: "",
  reasons: [],
  memory: "Coverage: 50 %\nGaps: mail; post\nSource: memory:1\nA fact.",
  diff: "",
  diff_ref: null,
};

test("what memory gave is taken in its parts, and out of words only where an older log has no parts", () => {
  const parts = { coverage: 75, gaps: ["one; with a semicolon"], sources: ["memory:2"], content: "Source: not one" };
  assert.deepEqual(memoryOf({ ...REQUEST, memory_results: parts }), parts);
  for (const old of [REQUEST, { ...REQUEST, memory_results: null }])
    assert.deepEqual(memoryOf(old), { coverage: 50, gaps: ["mail", "post"], sources: ["memory:1"], content: "A fact." });
  assert.equal(memoryOf({ ...REQUEST, memory: "" }), undefined);
  assert.equal(memoryOf({ ...REQUEST, memory: "", memory_results: { coverage: 0 } })?.coverage, 0);
  assert.equal(readMemory("nothing of the form").coverage, undefined);
});

test("an answer succeeded whatever its first word is", () => {
  const view = new ExecutionView();
  let sequence = 0;
  const say = (type: string, agent: string, payload: Record<string, unknown>) => {
    sequence += 1;
    const event: StoredEvent = { sequence, event_id: "", agent_id: agent, type, at_ms: sequence, payload };
    view.apply(event);
  };
  const outcome = (content: string) => {
    const calls = [{ call_id: `c${sequence}`, name: "final_answer", arguments: "{}" }];
    const call_id = calls[0]?.call_id;
    say("model_replied", "a", { step: 1, reply: { message: { content: "", tool_calls: calls } } });
    say("message_added", "a", { step: 1, message: { role: "tool", call_id, content } });
    const item = view.agent("a").items.at(-1);
    return item?.kind === "reply" && item.calls[0]?.outcome;
  };
  say("execution_started", "_", { task: {} });
  assert.equal(outcome("Error: handling is what was missing."), "success");
  assert.equal(outcome("Error: final_answer needs its text. Signature: …"), "error");
  // What the agent answers stands with its call, and is no message of the fleet's.
  assert.equal(view.agent("a").items.some((item) => item.kind === "note"), false);
});

test("a log without its beginning is shown from where it begins", () => {
  const view = new ExecutionView();
  view.apply({ sequence: 4711, event_id: "", agent_id: "a", type: "run_started", at_ms: 5_000, payload: { role: "DEV" } });
  assert.equal(view.beheaded, true);
  assert.equal(view.status, "in_progress");
  assert.equal(view.startedAt, 5_000);
  view.apply({ sequence: 4712, event_id: "", agent_id: "_", type: "execution_finished", at_ms: 6_000, payload: { status: "failed" } });
  assert.equal(view.status, "failed");
  assert.equal(view.ended, true);
});

test("nothing hides in a text", () => {
  assert.equal(visible("a\u202eb\u00adc\u061cd\u2028e\u3164"), "a⟨U+202E⟩b⟨U+00AD⟩c⟨U+061C⟩d⟨U+2028⟩e⟨U+3164⟩");
  assert.equal(visible("x\u{e0041}y"), "x⟨U+E0041⟩y");
  assert.equal(visible("Grüße, 世界 👋🏽\n\tשלום"), "Grüße, 世界 👋🏽\n\tשלום");
});

test("a download's name is a name", () => {
  assert.equal(fileName("agent-dev-1.patch"), "agent-dev-1.patch");
  assert.equal(fileName("../../\u202ehctap.exe\u0000.patch"), "hctap.exe_.patch");
  assert.equal(fileName("…/"), "download");
  assert.ok(fileName(`${"x".repeat(500)}.patch`).endsWith(".patch"));
});

test("the server's clock is what counts", () => {
  const now = Date.parse("2026-01-01T00:00:00Z");
  const at = (date: string) => new Response("", { headers: { date } });
  heardAt(at("Thu, 01 Jan 2026 01:00:00 GMT"), now);
  assert.ok(Math.abs(serverNow() - Date.now() - 3_600_500) < 1_000);
  heardAt(new Response(""), now);
  assert.ok(serverNow() - Date.now() > 3_000_000);
  heardAt(at("Thu, 01 Jan 2026 00:00:01 GMT"), now);
  assert.ok(Math.abs(serverNow() - Date.now()) < 1_000);
});

import assert from "node:assert/strict";
import { mock, test } from "node:test";
import type { StoredEvent } from "../src/execution/events";
import { Live, type LiveState } from "../src/live";

class Socket {
  static all: Socket[] = [];
  onopen: (() => void) | null = null;
  onmessage: ((message: { data: string }) => void) | null = null;
  onclose: ((event: { code: number; reason: string }) => void) | null = null;
  closed = false;
  constructor(readonly url: string) {
    Socket.all.push(this);
  }
  close(): void {
    this.closed = true;
  }
  tell(sequence: number): void {
    const event = { sequence, event_id: "", agent_id: "_", type: "x", at_ms: 0, payload: {} };
    this.onmessage?.({ data: JSON.stringify({ type: "log", sequence, event }) });
  }
  end(code: number, reason = ""): void {
    this.onclose?.({ code, reason });
  }
}

function follow() {
  Socket.all = [];
  const heard: number[] = [];
  const said: string[] = [];
  const states: LiveState[] = [];
  const browser = { back: () => {}, gone: () => {} };
  const live = new Live({
    url: "ws://h/api/ws/executions/e",
    onEvent: (event: StoredEvent) => heard.push(event.sequence),
    onText: (agent, text) => said.push(`${agent}:${text}`),
    onState: (state) => states.push(state),
    open: (url) => new Socket(url) as unknown as WebSocket,
    random: () => 1,
    watch: (back, gone) => {
      Object.assign(browser, { back, gone });
      return () => {};
    },
  });
  return { live, heard, said, states, browser, last: () => Socket.all.at(-1) as Socket };
}

test("after a break it goes on behind the last event, and no event comes twice", (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const { heard, states, last } = follow();
  assert.match(last().url, /\?from=1&events=1&text=1$/);
  last().onopen?.();
  last().tell(1);
  last().tell(4);
  last().tell(4);
  last().end(1006);
  assert.equal(Socket.all.length, 1);
  context.mock.timers.tick(500);
  assert.equal(Socket.all.length, 2);
  assert.match(last().url, /\?from=5&/);
  last().onopen?.();
  last().tell(4);
  last().tell(5);
  assert.deepEqual(heard, [1, 4, 5]);
  assert.deepEqual(states, ["live", "reconnecting", "live"]);
});

test("waits grow, and a connection that does not last does not make them short again", (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const { last } = follow();
  const waits: number[] = [];
  for (let round = 0; round < 8; round += 1) {
    const before = Socket.all.length;
    last().onopen?.();
    last().end(1013);
    let waited = 0;
    while (Socket.all.length === before && waited < 60_000) {
      context.mock.timers.tick(100);
      waited += 100;
    }
    waits.push(waited);
  }
  assert.deepEqual(waits, [500, 1000, 2000, 4000, 8000, 16_000, 20_000, 20_000]);
  last().onopen?.();
  context.mock.timers.tick(5_000);
  last().end(4408, "resume from 7");
  const before = Socket.all.length;
  context.mock.timers.tick(500);
  assert.equal(Socket.all.length, before + 1);
});

test("the browser back online asks at once; offline it hangs up", (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const { browser, states, last, live } = follow();
  last().onopen?.();
  const first = last();
  browser.gone();
  assert.equal(first.closed, true);
  assert.equal(states.at(-1), "reconnecting");
  browser.back();
  assert.equal(Socket.all.length, 2);
  context.mock.timers.tick(60_000);
  assert.equal(Socket.all.length, 2);
  live.close();
  browser.back();
  assert.equal(Socket.all.length, 2);
  assert.equal(states.at(-1), "closed");
});

test("codes that say why end it", () => {
  const ends: [number, LiveState][] = [
    [1000, "ended"],
    [4400, "refused"],
    [4401, "signed-out"],
    [4403, "refused"],
    [4404, "missing"],
  ];
  for (const [code, state] of ends) {
    const { states, last } = follow();
    last().onopen?.();
    last().end(code);
    assert.equal(states.at(-1), state);
    assert.equal(Socket.all.length, 1);
  }
});

test("pieces of text and rubbish are no events", () => {
  const { heard, said, last } = follow();
  last().onmessage?.({ data: "no json" });
  last().onmessage?.({ data: JSON.stringify({ type: "text", agent_id: "a", text: "hi", begins: true }) });
  last().onmessage?.({ data: JSON.stringify({ type: "log", sequence: 3 }) });
  assert.deepEqual(heard, []);
  assert.deepEqual(said, ["a:hi"]);
});

mock.reset();

// Three questions about a fleet, each answered in a sentence: is it healthy, is it busy, what is slow.
import { words } from "../types";
import { count, duration, plural } from "../ui/format";
import type { Metrics, Status } from "./calls";

/** What does not answer as it should, one a line; nothing where all is well. */
export function faultsOf(status: Status): string[] {
  const said = (message: string) => (message ? `: ${message}` : "");
  return [
    ...status.components.filter((one) => words(one.state) !== "up").map((one) => `${one.name} is ${words(one.state)}${said(one.message)}`),
    ...(status.model_endpoints ?? []).filter((one) => words(one.state) !== "up").map((one) => `the model server ${one.url} is ${words(one.state)}${said(one.message)}`),
    ...(status.hosts ?? []).filter((one) => !one.alive).map((one) => `the actor ${one.host_id} does not answer`),
    ...(status.nodes ?? []).filter((one) => !one.alive).map((one) => `the machine ${one.name} is lost`),
  ];
}

export function busyOf(status: Status): string {
  const queue = status.queue;
  const hosts = status.hosts ?? [];
  const running = hosts.reduce((sum, host) => sum + host.running, 0);
  const slots = hosts.reduce((sum, host) => sum + host.slots, 0);
  return [
    ...(queue
      ? [
          `${Math.max(0, queue.driven - queue.awaiting_approval)} running, ${queue.awaiting_approval} awaiting approval`,
          queue.waiting ? `${queue.waiting} of at most ${count(queue.max_waiting)} queued, for ${duration(queue.oldest_wait_ms)} at most` : "none queued",
        ]
      : []),
    ...(slots ? [`${running} of ${plural(slots, "slot")} in use`] : []),
  ].join("; ");
}

/** The operations that take longest, by their 95th percentile; whole executions take what their agents take. */
export function slowOf(metrics: Metrics): string {
  const whole = new Set(["deliberation", "orchestration", "workflow", "agent"]);
  const parts = metrics.latencies.filter((one) => one.count && !whole.has(one.operation)).sort((one, other) => other.p95_ms - one.p95_ms);
  if (!parts.length) return "Nothing was measured in this time.";
  return `${parts
    .slice(0, 3)
    .map((one) => `${words(one.operation)} ${duration(one.p50_ms)}, at worst ${duration(one.p95_ms)}`)
    .join("; ")}.`;
}

// What waits for the one who looks at the page: decisions about executions and plans that they may take.
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { get } from "./api";
import { sessions } from "./plan/calls";
import { roles } from "./session";
import type { ListExecutions } from "./types";

/** Paths of the views where a decision waits, the longest wait first. */
export const waiting = signal<readonly string[]>([]);

const EVERY_MS = 5_000;
const MOST = 100;

async function look(signal: AbortSignal): Promise<void> {
  const query = { statuses: ["DELIBERATION_STATUS_AWAITING_APPROVAL"], page_size: MOST };
  const [executions, plans] = await Promise.all([get<ListExecutions>("/api/executions", query, signal), sessions("", signal)]);
  waiting.value = [
    ...executions.executions.reverse().map((one) => `/executions/${encodeURIComponent(one.execution_id)}`),
    ...plans.sessions
      .filter((one) => one.status === "awaiting_approval" || one.status === "awaiting_answer")
      .map((one) => `/plans/${encodeURIComponent(one.session_id)}`),
  ];
}

/** Keeps `waiting` up to date while the page is looked at. */
export function useWaiting(): void {
  const decides = roles.value.some((role) => role === "approver" || role === "admin");
  useEffect(() => {
    if (!decides) return;
    const giveUp = new AbortController();
    // The next try tells more than a fault of this one.
    const go = () => void (document.hidden || look(giveUp.signal).catch(() => undefined));
    go();
    const timer = setInterval(go, EVERY_MS);
    return () => {
      giveUp.abort();
      clearInterval(timer);
      waiting.value = [];
    };
  }, [decides]);
}

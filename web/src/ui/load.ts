import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { aborted } from "../api";

export interface Loaded<T> {
  /** The last answer; it stays while a newer one is fetched or fails. */
  readonly value: T | undefined;
  readonly problem: unknown;
  readonly loading: boolean;
  readonly reload: () => void;
}

/**
 * Fetches something, again whenever `key` changes and, with `everyMs`, at that interval while the page can be seen.
 * An answer that comes after a newer question is dropped.
 */
export function useLoad<T>(load: (signal: AbortSignal) => Promise<T>, key: string, everyMs = 0): Loaded<T> {
  const [state, setState] = useState<{ key: string; value?: T; problem?: unknown; loading: boolean }>({ key, loading: true });
  const [round, setRound] = useState(0);
  const latest = useRef(load);
  latest.current = load;

  useEffect(() => {
    const giveUp = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let asking = false;
    async function go(): Promise<void> {
      asking = true;
      try {
        const value = await latest.current(giveUp.signal);
        if (giveUp.signal.aborted) return;
        setState({ key, value, loading: false });
      } catch (problem) {
        if (giveUp.signal.aborted || aborted(problem)) return;
        setState((before) => ({ ...before, key, problem, loading: false }));
      } finally {
        asking = false;
      }
      if (everyMs > 0 && !document.hidden) timer = setTimeout(() => void go(), everyMs);
    }
    function seen(): void {
      clearTimeout(timer);
      if (!document.hidden && !asking) void go();
    }
    setState((before) => (before.key === key ? { ...before, loading: true } : { key, loading: true }));
    void go();
    if (everyMs > 0) document.addEventListener("visibilitychange", seen);
    return () => {
      giveUp.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, [key, everyMs, round]);

  const reload = useCallback(() => setRound((before) => before + 1), []);
  const current = state.key === key ? state : { loading: true as const, value: undefined, problem: undefined };
  return { value: current.value, problem: current.problem, loading: current.loading, reload };
}

/** The time now, renewed at an interval, so that ages stay true. */
export function useNow(everyMs = 1000): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => {
      if (!document.hidden) setNow(Date.now());
    }, everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return now;
}

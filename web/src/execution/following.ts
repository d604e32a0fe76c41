// An execution that is followed while it is looked at: events are taken in together, a frame at a time.
import { useEffect, useRef, useState } from "preact/hooks";
import { Live, liveUrl, type LiveState } from "../live";
import { signedOut } from "../session";
import type { StoredEvent } from "./events";
import { ExecutionView } from "./view";

export interface Following {
  view: ExecutionView;
  state: LiveState;
  /** Why it is so, in the server's words. */
  detail: string;
}

/** So many events are taken in before the page is drawn again: a long log must not keep it from answering. */
const MOST_AT_ONCE = 1_500;
/** Hidden pages are given no frames. */
const HIDDEN_MS = 500;

type Heard = { event: StoredEvent } | { agentId: string; text: string; begins: boolean };

export function useExecution(id: string): Following {
  const view = useRef(new ExecutionView());
  const [standing, setStanding] = useState<{ state: LiveState; detail: string }>({ state: "connecting", detail: "" });
  const [, setRound] = useState(0);
  useEffect(() => {
    let shown = new ExecutionView();
    view.current = shown;
    const waiting: Heard[] = [];
    let frame = 0;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const schedule = () => {
      if (frame || timer) return;
      if (document.hidden) timer = setTimeout(take, HIDDEN_MS);
      else frame = requestAnimationFrame(take);
    };
    const take = () => {
      frame = 0;
      timer = undefined;
      // What has the same identity is not drawn again.
      shown = shown.again();
      view.current = shown;
      for (const heard of waiting.splice(0, MOST_AT_ONCE)) {
        if ("event" in heard) shown.apply(heard.event);
        else shown.hear(heard.agentId, heard.text, heard.begins);
      }
      setRound((round) => round + 1);
      if (waiting.length) schedule();
    };
    const awake = () => {
      // Frames that were asked for before the page was hidden do not come.
      if (!waiting.length) return;
      cancelAnimationFrame(frame);
      clearTimeout(timer);
      frame = 0;
      timer = undefined;
      schedule();
    };
    document.addEventListener("visibilitychange", awake);
    const live = new Live({
      url: liveUrl(id),
      onEvent: (event) => {
        waiting.push({ event });
        schedule();
      },
      onText: (agentId, text, begins) => {
        waiting.push({ agentId, text, begins });
        schedule();
      },
      onState: (state, detail) => {
        setStanding({ state, detail });
        if (state === "signed-out") signedOut();
      },
    });
    return () => {
      document.removeEventListener("visibilitychange", awake);
      live.close();
      cancelAnimationFrame(frame);
      clearTimeout(timer);
    };
  }, [id]);
  return { view: view.current, ...standing };
}

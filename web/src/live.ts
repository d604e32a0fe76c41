// An execution's events as they happen: one WebSocket, opened again after every break where the last one left off.
import type { StoredEvent } from "./execution/events";

/** `missing`: there is no such execution; `signed-out`: no session; `refused`: asking again would change nothing. */
export type LiveState = "connecting" | "live" | "reconnecting" | "ended" | "missing" | "signed-out" | "refused" | "closed";

export interface LiveOptions {
  /** Of the execution's socket, without its query. */
  url: string;
  onEvent: (event: StoredEvent) => void;
  /** A piece of what a model says at the moment. */
  onText?: (agentId: string, text: string, begins: boolean) => void;
  onState?: (state: LiveState, detail: string) => void;
  /** What stands in for the browser's own in tests. */
  open?: (url: string) => WebSocket;
  random?: () => number;
  /** Tells of the browser being back: online, or looked at again. Answers how to stop listening. */
  watch?: (back: () => void, gone: () => void) => () => void;
}

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 20_000;
const STEADY_MS = 5_000;
/** Close codes after which asking again would change nothing. */
const FINAL: Readonly<Record<number, LiveState>> = {
  1000: "ended",
  4400: "refused",
  4401: "signed-out",
  4403: "refused",
  4404: "missing",
};

/** Follows one execution. Every event is handed on once, in order, however often the connection breaks. */
export class Live {
  state: LiveState = "connecting";
  /** The number of the last event that was handed on. */
  sequence = 0;
  readonly #options: LiveOptions;
  #socket: WebSocket | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #steady: ReturnType<typeof setTimeout> | undefined;
  #failures = 0;
  #unwatch: () => void;

  constructor(options: LiveOptions) {
    this.#options = options;
    this.#unwatch = (options.watch ?? watched)(
      () => this.#back(),
      () => this.#gone(),
    );
    this.#connect();
  }

  close(): void {
    this.#unwatch();
    this.#say("closed");
    this.#drop();
    clearTimeout(this.#timer);
  }

  get #over(): boolean {
    return !["connecting", "live", "reconnecting"].includes(this.state);
  }

  #connect(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const { url, open = (at) => new WebSocket(at) } = this.#options;
    const socket = open(`${url}?from=${this.sequence + 1}&events=1&text=1`);
    this.#socket = socket;
    socket.onopen = () => {
      if (this.#socket !== socket) return;
      this.#say("live");
      // Only a connection that lasts clears the record: one that is taken and closed at once must not be asked for
      // again without a wait.
      this.#steady = setTimeout(() => (this.#failures = 0), STEADY_MS);
    };
    socket.onmessage = (message) => {
      if (this.#socket === socket) this.#take(String(message.data));
    };
    socket.onclose = (event) => {
      if (this.#socket !== socket) return;
      this.#drop();
      const final = FINAL[event.code];
      if (final) this.#say(final, event.reason);
      else this.#retry(event.reason);
    };
  }

  #take(data: string): void {
    let message: { type?: string; event?: StoredEvent; agent_id?: string; text?: string; begins?: boolean };
    try {
      message = JSON.parse(data) as typeof message;
    } catch {
      return;
    }
    if (message.type === "text") {
      this.#options.onText?.(message.agent_id ?? "", message.text ?? "", message.begins ?? false);
      return;
    }
    const event = message.event;
    if (!event || event.sequence <= this.sequence) return;
    this.sequence = event.sequence;
    this.#options.onEvent(event);
  }

  #retry(detail: string): void {
    if (this.#over) return;
    this.#failures += 1;
    const longest = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** (this.#failures - 1));
    const wait = longest * (0.5 + 0.5 * (this.#options.random ?? Math.random)());
    this.#say("reconnecting", detail);
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#connect(), wait);
  }

  #drop(): void {
    clearTimeout(this.#steady);
    const socket = this.#socket;
    this.#socket = null;
    if (!socket) return;
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.close();
  }

  /** The network is back, or somebody looks again: no reason to wait any longer. */
  #back(): void {
    if (this.#over || this.#socket) return;
    this.#connect();
  }

  /** The browser knows that it has no network; the socket would learn it much later. */
  #gone(): void {
    if (this.#over) return;
    this.#drop();
    this.#retry("no network");
  }

  #say(state: LiveState, detail = ""): void {
    this.state = state;
    this.#options.onState?.(state, detail);
  }
}

/** Where the socket of an execution is. */
export function liveUrl(executionId: string): string {
  const { protocol, host } = location;
  return `${protocol === "https:" ? "wss" : "ws"}://${host}/api/ws/executions/${encodeURIComponent(executionId)}`;
}

function watched(back: () => void, gone: () => void): () => void {
  const seen = () => {
    if (!document.hidden) back();
  };
  addEventListener("online", back);
  addEventListener("offline", gone);
  document.addEventListener("visibilitychange", seen);
  return () => {
    removeEventListener("online", back);
    removeEventListener("offline", gone);
    document.removeEventListener("visibilitychange", seen);
  };
}

// Calls of the gateway: same origin, JSON both ways, faults as problem documents (RFC 9457).
import { heardAt } from "./clock";
import { signedOut } from "./session";

/** A fault as the gateway tells it. */
export class Problem extends Error {
  constructor(
    readonly title: string,
    readonly status: number,
    readonly detail: string,
    /** Name of the gRPC code, such as NOT_FOUND. */
    readonly code = "",
    /** Name of the request's field that is wrong, such as `deliberate.repo.path`. */
    readonly field = "",
    /** The way out. */
    readonly hint = "",
    readonly retryAfterSeconds = 0,
  ) {
    super(detail || title);
    this.name = "Problem";
  }

  /** Nothing answered at all. */
  get unreachable(): boolean {
    return this.status === 0;
  }
}

export type Query = Record<string, string | number | boolean | readonly string[] | undefined>;

export interface CallOptions {
  readonly query?: Query;
  readonly body?: unknown;
  /** Bytes as they are, instead of `body`. */
  readonly bytes?: { readonly content: Blob; readonly type: string };
  readonly signal?: AbortSignal;
  readonly accept?: string;
}

/** A path with its query; empty values are left out. */
export function address(path: string, query: Query = {}): string {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value === undefined || value === "") continue;
    for (const one of Array.isArray(value) ? value : [value]) params.append(name, String(one));
  }
  const text = params.toString();
  return text ? `${path}?${text}` : path;
}

function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}

async function problemOf(response: Response): Promise<Problem> {
  let said: Record<string, unknown> = {};
  try {
    const read: unknown = await response.json();
    if (read && typeof read === "object") said = read as Record<string, unknown>;
  } catch {
    // Something in between answered, not the gateway: its status alone has to do.
  }
  const wait = Number(said.retry_after_seconds ?? response.headers.get("retry-after") ?? 0);
  return new Problem(
    text(said.title) || response.statusText || `HTTP ${response.status}`,
    response.status,
    text(said.detail),
    text(said.code),
    text(said.field),
    text(said.hint),
    Number.isFinite(wait) ? wait : 0,
  );
}

/** Sends a request and answers the response as it comes. Raises Problem. */
export async function send(method: string, path: string, options: CallOptions = {}): Promise<Response> {
  const headers: Record<string, string> = { accept: options.accept ?? "application/json" };
  const init: RequestInit = { method, headers, credentials: "same-origin", cache: "no-store" };
  if (method !== "GET") {
    headers["content-type"] = options.bytes?.type ?? "application/json";
    init.body = options.bytes?.content ?? JSON.stringify(options.body ?? {});
  }
  if (options.signal) init.signal = options.signal;
  let response: Response;
  try {
    response = await fetch(address(path, options.query), init);
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Problem("Not reachable", 0, "The fleet does not answer.", "UNAVAILABLE", "", "See whether `fleet up` runs.");
  }
  heardAt(response);
  if (response.ok) return response;
  const problem = await problemOf(response);
  if (response.status === 401) signedOut();
  throw problem;
}

/** Sends a request and answers its JSON. Raises Problem. */
export async function call<T>(method: string, path: string, options: CallOptions = {}): Promise<T> {
  const response = await send(method, path, options);
  if (response.status === 204) return undefined as T;
  return (await response.json()) as T;
}

export function get<T>(path: string, query: Query = {}, signal?: AbortSignal): Promise<T> {
  return call<T>("GET", path, { query, ...(signal && { signal }) });
}

export function post<T>(path: string, body: unknown = {}, options: CallOptions = {}): Promise<T> {
  return call<T>("POST", path, { ...options, body });
}

export function remove<T>(path: string, query: Query = {}): Promise<T> {
  return call<T>("DELETE", path, { query });
}

export interface ServerSentEvent {
  readonly event: string;
  readonly id: string;
  readonly data: string;
}

/** Reads a response of text/event-stream, event by event, until it ends. */
export async function* serverSentEvents(response: Response): AsyncGenerator<ServerSentEvent> {
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let event = "message";
  let id = "";
  let data: string[] = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop() ?? "";
      for (const line of lines) {
        if (line === "") {
          if (data.length) yield { event, id, data: data.join("\n") };
          event = "message";
          data = [];
          continue;
        }
        const colon = line.indexOf(":");
        if (colon === 0) continue;
        const name = colon < 0 ? line : line.slice(0, colon);
        const said = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
        if (name === "data") data.push(said);
        else if (name === "event") event = said;
        else if (name === "id") id = said;
      }
    }
  } finally {
    // Whoever stops listening hangs up, which ends the work behind it where the service says so.
    void reader.cancel().catch(() => undefined);
  }
}

/** Whether a request was given up by the page itself. */
export function aborted(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}

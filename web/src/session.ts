// Who is signed in: the cookie that the gateway keeps, and the token that becomes one.
import { signal } from "@preact/signals";
import { heardAt } from "./clock";

export type Standing = "unknown" | "in" | "out" | "unreachable";

/** Whether the gateway takes this browser's requests. */
export const standing = signal<Standing>("unknown");

/** Whether it asks for a token at all. */
export const tokenNeeded = signal(true);

/** What the one who is signed in may do. */
export const roles = signal<readonly string[]>([]);

/** Where the fleet answers over gRPC, as its gateway reaches it. */
export const grpc = signal("");

/** Says that a request was refused for want of a session. */
export function signedOut(): void {
  standing.value = "out";
}

async function trade(token: string): Promise<Response> {
  return fetch("/api/session", {
    method: "POST",
    credentials: "same-origin",
    cache: "no-store",
    headers: { "content-type": "application/json", accept: "application/json" },
    body: JSON.stringify({ token }),
  });
}

/** Trades a token for the session's cookie; answers what was wrong with it, or nothing. */
export async function signIn(token: string): Promise<string | undefined> {
  let response: Response;
  try {
    response = await trade(token);
  } catch {
    return "The fleet does not answer. See whether `fleet up` runs.";
  }
  heardAt(response);
  if (response.ok) {
    await look();
    return undefined;
  }
  if (response.status === 401 || response.status === 403) return "This is not the fleet's token.";
  try {
    const said = (await response.json()) as { detail?: string; title?: string };
    return said.detail ?? said.title ?? `The gateway answered ${response.status}.`;
  } catch {
    return `The gateway answered ${response.status}.`;
  }
}

/** Gives the session's cookie back. */
export async function signOut(): Promise<void> {
  await fetch("/api/session", {
    method: "DELETE",
    credentials: "same-origin",
    headers: { "content-type": "application/json" },
    body: "{}",
  }).catch(() => undefined);
  standing.value = "out";
}

/** Takes the token out of the address, where `fleet up` put it, and finds out where the browser stands. */
export async function begin(): Promise<void> {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given !== null) {
    // Before anything else: a token does not stay where shoulders and histories see it.
    history.replaceState(null, "", location.pathname + location.search);
    if ((await signIn(given)) === undefined) return;
  }
  await look();
}

/** Finds out where the browser stands, and who it is for. */
async function look(): Promise<void> {
  try {
    const response = await fetch("/api/session", { credentials: "same-origin", cache: "no-store" });
    heardAt(response);
    if (response.ok) {
      const said = (await response.json()) as { by?: string; roles?: string[]; grpc?: string };
      tokenNeeded.value = said.by !== "nothing";
      roles.value = said.roles ?? [];
      grpc.value = said.grpc ?? "";
    }
    standing.value = response.ok ? "in" : response.status === 401 ? "out" : "unreachable";
  } catch {
    standing.value = "unreachable";
  }
}

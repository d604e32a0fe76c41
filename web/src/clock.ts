// The server's time: browsers' clocks go wrong, and what is shown as "left" or "running for" must not go wrong with them.

const TOLERATED_MS = 2_000;
let ahead = 0;

/** Learns from a response how far the server's clock is ahead of the browser's. Its `Date` is exact to a second. */
export function heardAt(response: Response, now = Date.now()): void {
  const said = Date.parse(response.headers.get("date") ?? "");
  if (Number.isNaN(said)) return;
  const difference = said + 500 - now;
  ahead = Math.abs(difference) > TOLERATED_MS ? difference : 0;
}

/** What the server's clock says now, in milliseconds since the epoch. */
export function serverNow(): number {
  return Date.now() + ahead;
}

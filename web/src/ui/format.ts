// Numbers and times for people.

const CLOCK = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });

/** A length of time given in milliseconds: `840 ms`, `12.4 s`, `3 min 20 s`, `2 h 05 min`. */
export function duration(ms: number | undefined): string {
  if (ms === undefined || !Number.isFinite(ms) || ms < 0) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
  return `${Math.round(minutes / (24 * 60))} days`;
}

/** How long ago a moment was, given in milliseconds since the epoch. */
export function age(atMs: number | undefined, now = Date.now()): string {
  if (!atMs) return "–";
  const seconds = Math.max(0, (now - atMs) / 1000);
  if (seconds < 10) return "just now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 48 * 3600) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86_400)} days ago`;
}

/** A moment in the reader's own time. */
export function moment(atMs: number | undefined): string {
  return atMs ? CLOCK.format(atMs) : "–";
}

/** The same to the second, for logs. */
export function clock(atMs: number | undefined): string {
  if (!atMs) return "–";
  const at = new Date(atMs);
  return [at.getHours(), at.getMinutes(), at.getSeconds()].map((part) => String(part).padStart(2, "0")).join(":");
}

/** A count, short from ten thousand on: `9,400`, `12.3k`, `4.1M`. */
export function count(value: number | undefined): string {
  if (value === undefined || !Number.isFinite(value)) return "–";
  if (Math.abs(value) < 10_000) return Math.round(value).toLocaleString("en");
  if (Math.abs(value) < 999_950) return `${(value / 1000).toFixed(1)}k`;
  return `${(value / 1_000_000).toFixed(1)}M`;
}

/** Tokens of a usage, both ways together. */
export function tokens(usage: { prompt_tokens: number; completion_tokens: number } | null | undefined): string {
  return usage ? count(usage.prompt_tokens + usage.completion_tokens) : "–";
}

/** Money in US dollars; nothing where nothing has a price. */
export function cost(usd: number | undefined): string {
  if (!usd) return "–";
  if (usd < 0.005) return "< $0.01";
  return `$${usd.toFixed(2)}`;
}

/** A size in bytes. */
export function size(bytes: number | undefined): string {
  if (bytes === undefined || !Number.isFinite(bytes)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit ? value.toFixed(1) : value} ${units[unit]}`;
}

/** A share from 0 to 1 as a percentage. */
export function share(value: number | undefined): string {
  return value === undefined || !Number.isFinite(value) ? "–" : `${(value * 100).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %`;
}

/** The first line of a text, cut at a number of characters. */
export function firstLine(text: string, most = 160): string {
  const line = text.trimStart().split("\n", 1)[0] ?? "";
  const letters = [...line.slice(0, most * 2 + 2)];
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : line;
}

/** The head of an id, for places where all of it would not fit. */
export function shortId(id: string): string {
  return id.length > 13 ? id.slice(0, 8) : id;
}

/** A number of things: `1 agent`, `3 agents`. */
export function plural(number: number, one: string, many = `${one}s`): string {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** A directory by its name, an address by its owner and name. */
export function shortRepository(location: string): string {
  const parts = location.replace(/\.git$/, "").replace(/\/+$/, "").split("/");
  return parts.slice(location.startsWith("/") ? -1 : -2).join("/");
}

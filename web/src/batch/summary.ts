// Many executions in a line.
import { bare, ended, words, type Execution } from "../types";
import { count, duration, plural } from "../ui/format";

/** How many came to what, with what they cost; the verdict where there is one, else the status. */
export function summaryOf(rows: readonly Execution[]): string {
  const counts = new Map<string, number>();
  for (const row of rows) {
    const verdict = bare(row.verdict);
    const word = ended(row.status) && row.winner_id && verdict && verdict !== "UNSPECIFIED" ? words(row.verdict) : words(row.status);
    counts.set(word, (counts.get(word) ?? 0) + 1);
  }
  const took = rows.filter((row) => ended(row.status)).map((row) => row.finished_at_ms - row.created_at_ms).sort((one, other) => one - other);
  const spent = rows.reduce((sum, row) => sum + (row.usage ? row.usage.prompt_tokens + row.usage.completion_tokens : 0), 0);
  return [
    `${took.length} of ${plural(rows.length, "task")} ended`,
    ...[...counts].sort((one, other) => other[1] - one[1]).map(([word, number]) => `${count(number)} ${word}`),
    `${count(spent)} tokens`,
    took.length ? `median ${duration(took[took.length >> 1])}` : "",
  ]
    .filter(Boolean)
    .join(" · ");
}

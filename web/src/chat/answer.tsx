import { words } from "../types";
import { clock, Link, Markdown, StatusBadge, Table, Tag } from "../ui";
import type { Reference, Turn } from "./sending";

/** A turn: what was asked, what was answered, and what came with it. */
export function TurnView({ turn }: { turn: Turn }) {
  return (
    <article class="turn" aria-label={`Turn ${turn.number}`}>
      <div class="said said-person">
        <p class="prose-text">{turn.text}</p>
      </div>
      <div class={`said said-fleet${turn.success ? "" : " said-excuse"}`}>
        <Markdown text={turn.answer} />
        {turn.tables.map((table, index) => (
          <figure key={index} class="stack-tight">
            {table.title && <figcaption class="legend">{table.title}</figcaption>}
            <Table
              caption={table.title || `Table ${index + 1}`}
              rows={table.rows.map((row, at) => ({ cells: row.cells, at }))}
              keyOf={(row) => String(row.at)}
              cards={false}
              columns={table.columns.map((name, column) => ({ name, cell: (row: { cells: string[] }) => <Cell column={name} text={row.cells[column] ?? ""} /> }))}
            />
          </figure>
        ))}
        {turn.references.length > 0 && <References references={turn.references} />}
        {turn.execution_id && (
          <p>
            Started <Link href={`/executions/${encodeURIComponent(turn.execution_id)}`}>execution {turn.execution_id.slice(0, 8)}</Link>
          </p>
        )}
        <p class="said-about">
          {!turn.success && <StatusBadge status="" tone="warn" text={words(turn.stop_reason) || "no answer"} />}
          <time class="muted small">{clock(turn.answered_at_ms)}</time>
          {turn.tools.map((tool, index) => (
            <Tag key={index}>{tool}</Tag>
          ))}
        </p>
      </div>
    </article>
  );
}

function Cell({ column, text }: { column: string; text: string }) {
  if (column !== "execution_id" || !text) return <>{text}</>;
  return <Link href={`/executions/${encodeURIComponent(text)}`}>{text}</Link>;
}

const STANDINGS: Record<string, string> = {
  RESOLVED: "means",
  AMBIGUOUS: "could mean",
  STALE: "may mean",
  BEYOND: "is beyond the list",
  UNKNOWN: "is not known",
};

function References({ references }: { references: readonly Reference[] }) {
  return (
    <ul class="references" aria-label="What phrases mean">
      {references.map((one, index) => (
        <li key={index}>
          <q>{one.phrase}</q> {STANDINGS[words(one.standing).toUpperCase()] ?? words(one.standing)}{" "}
          {one.things.map((thing, at) => (
            <span key={at}>
              {at > 0 && ", "}
              <span class="muted">{thing.kind}</span>{" "}
              {thing.kind === "execution" ? <Link href={`/executions/${encodeURIComponent(thing.name)}`}>{thing.name}</Link> : thing.name}
            </span>
          ))}
        </li>
      ))}
    </ul>
  );
}

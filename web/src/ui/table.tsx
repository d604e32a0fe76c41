import type { ComponentChildren } from "preact";

export interface Column<Row> {
  readonly name: string;
  readonly cell: (row: Row) => ComponentChildren;
  /** Numbers stand at the right, in figures of one width. */
  readonly number?: boolean;
  /** Not worth its place on a narrow screen. */
  readonly minor?: boolean;
  /** Takes what the others leave. */
  readonly grow?: boolean;
  /** The row's own name: its heading for those who listen. */
  readonly heading?: boolean;
}

interface TableProps<Row> {
  caption: string;
  columns: readonly Column<Row>[];
  rows: readonly Row[];
  keyOf: (row: Row) => string;
  /** Rows become cards on a narrow screen, each cell with its column's name. */
  cards?: boolean;
}

/** A table that scrolls within itself where it is too wide. */
export function Table<Row>({ caption, columns, rows, keyOf, cards = true }: TableProps<Row>) {
  return (
    <div class="table-box" role="region" aria-label={caption} tabIndex={0}>
      <table class={`table${cards ? " table-cards" : ""}`}>
        <caption class="sr-only">{caption}</caption>
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column.name} scope="col" class={classes(column)}>
                {column.name || <span class="sr-only">Actions</span>}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={keyOf(row)}>
              {columns.map((column) =>
                column.heading ? (
                  <th key={column.name} scope="row" class={classes(column)} data-name={column.name}>
                    {column.cell(row)}
                  </th>
                ) : (
                  <td key={column.name} class={classes(column)} data-name={column.name}>
                    {column.cell(row)}
                  </td>
                ),
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function classes<Row>(column: Column<Row>): string {
  return [column.number && "number", column.minor && "minor", column.grow && "grow"].filter(Boolean).join(" ");
}

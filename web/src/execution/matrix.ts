/** Which check and which test failed on which candidate. */

import type { CheckResult } from "./events";
import type { ExecutionView } from "./view";

export type Mark = "passed" | "failed" | "skipped" | "unknown";

export interface MatrixRow {
  name: string;
  /** A single test of the check above, which failed somewhere. */
  test: boolean;
  /** On the untouched commit; checks are run there only as a part of the baseline. */
  before: Mark;
  /** By candidate. */
  on: ReadonlyMap<string, Mark>;
}

const MOST_TESTS = 60;

/** A row for each check, then for each test that failed on the commit or on a candidate; as many as can be looked at. */
export function matrixOf(view: ExecutionView, candidates: readonly string[]): MatrixRow[] {
  const reports = candidates.flatMap((id) => {
    const report = view.reports.get(id);
    return report ? [[id, report.results] as const] : [];
  });
  const checks = new Set(reports.flatMap(([, results]) => results.map(nameOf)));
  const rows = [...checks].map((name): MatrixRow => ({
    name,
    test: false,
    before: "unknown",
    on: new Map(reports.map(([id, results]) => [id, markOf(results.find((one) => nameOf(one) === name))])),
  }));
  const suites = view.baseline?.suites.filter((suite) => suite.tests) ?? [];
  const failing = (results: readonly CheckResult[]) => new Set(results.flatMap((one) => one.tests?.failing ?? []));
  const before = new Set(suites.flatMap((suite) => suite.tests?.failing ?? []));
  const tests = new Set([...before, ...reports.flatMap(([, results]) => [...failing(results)])]);
  for (const name of [...tests].sort().slice(0, MOST_TESTS))
    rows.push({
      name,
      test: true,
      before: before.has(name) ? "failed" : suites.length ? "passed" : "unknown",
      on: new Map(
        reports.map(([id, results]) => {
          const ran = results.some((one) => one.tests && !one.skipped_reason);
          return [id, failing(results).has(name) ? "failed" : ran ? "passed" : "unknown"];
        }),
      ),
    });
  return rows;
}

function nameOf(result: CheckResult): string {
  return result.name || result.kind;
}

function markOf(result: CheckResult | undefined): Mark {
  if (!result) return "unknown";
  return result.skipped_reason ? "skipped" : result.passed ? "passed" : "failed";
}

/** The baseline: what the tests say of the untouched commit. */

import type { Baseline, SuiteBaseline } from "./events";

/** In a line, as the server says it. */
export function baselineLine(baseline: Baseline | null, error: string): string {
  if (!baseline) return error && `none: ${error}`;
  return baseline.suites.map(suiteLine).join("; ") || "no tests were found";
}

function suiteLine(suite: SuiteBaseline): string {
  if (suite.unusable) return suite.unusable;
  const tests = suite.tests;
  if (!tests) return `\`${suite.command}\` ends with exit code ${suite.exit_code}`;
  const files = new Set(suite.uncollected.map((entry) => entry.split(": ", 1)[0]));
  const failing = tests.failing.filter((test) => !files.has(test));
  return [
    [
      `${tests.passed} pass`,
      failing.length ? `${failing.length} fail: ${short(failing)}` : "",
      tests.skipped ? `${tests.skipped} skipped` : "",
    ]
      .filter(Boolean)
      .join(", "),
    suite.uncollected.length ? `cannot be collected: ${short(suite.uncollected)}` : "",
    suite.hung.length ? `hangs: ${short(suite.hung)}` : "",
    suite.stopped,
  ]
    .filter(Boolean)
    .join("; ");
}

function short(names: string[]): string {
  return names.slice(0, 3).join(", ") + (names.length > 3 ? ` and ${names.length - 3} more` : "");
}

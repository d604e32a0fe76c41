// The outcome of a study as `fleet study` writes it into report.json. The file is a stranger's until it is read.

export interface Rate {
  readonly passed: number;
  readonly of: number;
  readonly low: number;
  readonly high: number;
}

export interface Arm {
  readonly name: string;
  readonly passed: Rate;
  readonly verified: Rate;
  readonly resolved: Rate | null;
  readonly tokens: number;
  readonly seconds: number;
}

export interface Study {
  readonly name: string;
  /** Trials that have no result yet. */
  readonly missing: number;
  readonly arms: readonly Arm[];
}

const MOST_ARMS = 40;

function finite(value: unknown): number {
  return typeof value === "number" && Number.isFinite(value) ? value : 0;
}

function rate(value: unknown): Rate | null {
  if (!value || typeof value !== "object") return null;
  const said = value as Record<string, unknown>;
  const bound = (one: unknown) => Math.min(1, Math.max(0, finite(one)));
  return { passed: finite(said.passed), of: finite(said.of), low: bound(said.low), high: bound(said.high) };
}

/** A study, or nothing where a text is no report of one. */
export function readStudy(text: string): Study | undefined {
  let said: { study?: unknown; missing?: unknown; arms?: unknown } | null;
  try {
    said = JSON.parse(text) as typeof said;
  } catch {
    return undefined;
  }
  if (!said || !Array.isArray(said.arms)) return undefined;
  const arms = said.arms.slice(0, MOST_ARMS).flatMap((one: unknown): Arm[] => {
    const arm = (one ?? {}) as Record<string, unknown>;
    const [passed, verified] = [rate(arm.passed), rate(arm.verified)];
    if (!passed || !verified) return [];
    const candidates = finite(arm.candidates);
    const name = `${candidates} ${candidates === 1 ? "candidate" : "candidates"}${arm.without ? ` without ${String(arm.without)}` : ""}`;
    return [{ name, passed, verified, resolved: rate(arm.resolved), tokens: finite(arm.tokens), seconds: finite(arm.median_seconds) }];
  });
  return arms.length ? { name: String(said.study ?? ""), missing: finite(said.missing), arms } : undefined;
}

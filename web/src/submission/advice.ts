import { plural, share } from "../ui/format";

export interface Option {
  value: string;
  tried: number;
  expected: number;
  low: number;
  high: number;
  best: number;
}

export interface Advice {
  choice: string;
  value: string;
  options: Option[];
  reason: string;
}

export interface Recommendation {
  goal_type: string;
  council?: Advice | null;
  model_profile?: Advice | null;
  agents?: Advice | null;
  approach?: Advice | null;
  outcomes: number;
}

/** Tried less often than this, a choice is a trial and no experience. */
const TRIED = 0.5;

/** What experience recommends, in a sentence: what, on how much, how likely it is the best. */
export function sentenceOf(said: Recommendation, councils: ReadonlyMap<string, string>): string {
  const about = said.goal_type ? ` ${said.goal_type}` : "";
  if (!said.outcomes) return `No${about} task has ended yet: the defaults are as good as anything.`;
  const parts: readonly (readonly [Advice | null | undefined, (value: string) => string])[] = [
    [said.agents, (value) => plural(Number(value), "agent")],
    [said.approach, (value) => value.replace("/", " with ") + (value.includes("/") ? " planning" : "")],
    [said.model_profile, (value) => `profile ${value}`],
    [said.council, (value) => `council ${value}${councils.has(value) ? "" : " (gone)"}`],
  ];
  const told = parts.flatMap(([advice, name]) => {
    if (!advice?.value) return [];
    const option = advice.options.find((one) => one.value === advice.value);
    if (advice.options.length < 2 || !option) return [name(advice.value)];
    return [`${name(advice.value)} (${option.tried < TRIED ? "a trial: not tried yet" : `${share(option.best)} likely best`})`];
  });
  return `${plural(said.outcomes, `${about.trim()} outcome`.trim())} suggest${said.outcomes === 1 ? "s" : ""} ${told.join(", ")}.`;
}

/** The fields of the form that a recommendation decides; a task goes to the council of its role. */
export function taken(
  said: Recommendation,
  councils: ReadonlyMap<string, string>,
): { agents?: string; profile?: string; mode?: "deliberate" | "orchestrate"; planning?: string; role?: string } {
  const [mode, planning] = (said.approach?.value ?? "").split("/");
  const value = (advice: Advice | null | undefined): string | undefined => (advice && advice.value !== "default" ? advice.value : undefined);
  const agents = value(said.agents);
  const profile = value(said.model_profile);
  const role = councils.get(value(said.council) ?? "");
  return {
    ...(agents && /^\d+$/.test(agents) && { agents }),
    ...(profile && { profile }),
    ...(role && { role }),
    ...((mode === "deliberate" || mode === "orchestrate") && { mode }),
    ...(planning && ["simple", "agentic", "hybrid"].includes(planning) && { planning: planning.toUpperCase() }),
  };
}

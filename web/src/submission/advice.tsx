import { share } from "../ui/format";
import { Button, Dialog, StatusBadge, Table } from "../ui";

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

const NAMES: Record<string, string> = {
  council: "Council",
  model_profile: "Model profile",
  agents: "Agents",
  approach: "Approach",
};

interface AdviceProps {
  said: Recommendation;
  /** The roles of the councils there are, by the councils' ids. */
  councils: ReadonlyMap<string, string>;
  onTake: (said: Recommendation) => void;
  onClose: () => void;
}

/** What experience recommends for the task, and how sure it is. */
export function AdviceDialog({ said, councils, onTake, onClose }: AdviceProps) {
  const parts = [said.approach, said.agents, said.model_profile, said.council].filter((one) => one?.value) as Advice[];
  return (
    <Dialog
      wide
      title="What experience recommends"
      onClose={onClose}
      actions={
        <>
          <Button onClick={onClose}>Leave it as it is</Button>
          <Button
            kind="primary"
            onClick={() => {
              onTake(said);
              onClose();
            }}
          >
            Take it
          </Button>
        </>
      }
    >
      <p class="muted">
        Taken for {said.goal_type || "work of no known kind"}; it rests on {said.outcomes} outcome{said.outcomes === 1 ? "" : "s"}.
      </p>
      {parts.map((part) => (
        <section key={part.choice} class="stack-tight">
          <div class="row">
            <h3>{NAMES[part.choice] ?? part.choice}:</h3>
            <StatusBadge status="" tone="live" text={part.value} />
          </div>
          {part.reason && <p>{part.reason}</p>}
          {part.choice === "council" && (
            <p class="muted">
              {councils.has(part.value) ? `It is the council of the role ${councils.get(part.value)}, which a task of that role goes to.` : "There is no such council now."}
            </p>
          )}
          {part.options.length > 1 && (
            <Table
              caption={`${NAMES[part.choice] ?? part.choice}: what was weighed`}
              rows={part.options}
              keyOf={(one) => one.value}
              columns={[
                { name: "Choice", heading: true, cell: (one) => one.value },
                { name: "Best with", number: true, cell: (one) => share(one.best) },
                { name: "Expected", number: true, cell: (one) => one.expected.toFixed(2) },
                { name: "90 % between", number: true, cell: (one) => `${one.low.toFixed(2)} and ${one.high.toFixed(2)}` },
                { name: "Tried", number: true, minor: true, cell: (one) => one.tried.toFixed(1) },
              ]}
            />
          )}
        </section>
      ))}
    </Dialog>
  );
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

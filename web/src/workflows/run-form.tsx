/** What a run is given, as the workflow declares it; where it works; and off it goes. */

import { useState } from "preact/hooks";
import { visible } from "../visible";
import { randomName } from "../names";
import { navigate } from "../router";
import { Button, Checkbox, ProblemBanner, Select, TextArea, TextField } from "../ui";
import { run, type WorkflowInput } from "./calls";

interface Props {
  name?: string;
  definition?: string;
  inputs: WorkflowInput[];
}

type Values = Readonly<Record<string, string>>;

export function RunForm({ name, definition, inputs }: Props) {
  const [values, setValues] = useState<Values>(() => Object.fromEntries(inputs.map((one) => [one.name, first(one)])));
  const [repository, setRepository] = useState("");
  const [ref, setRef] = useState("");
  const [approval, setApproval] = useState("");
  const [wrong, setWrong] = useState<Values>({});
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<unknown>();
  async function go(): Promise<void> {
    const { given, faults } = read(inputs, values);
    setWrong(faults);
    if (Object.keys(faults).length) return;
    setBusy(true);
    setProblem(undefined);
    try {
      const answer = await run({
        ...(definition ? { definition } : { name: name ?? "" }),
        task_id: randomName((name ?? "workflow").replace(/[^A-Za-z0-9-]/g, "-").slice(0, 80)),
        inputs_json: JSON.stringify(given),
        approval: approval || "APPROVAL_POLICY_UNSPECIFIED",
        ...(repository.trim() && { repo: place(repository.trim(), ref.trim()) }),
      });
      navigate(`/executions/${encodeURIComponent(answer.execution_id)}`);
    } catch (error) {
      setProblem(error);
      setBusy(false);
    }
  }
  return (
    <form
      class="card stack"
      aria-label="Run it"
      onSubmit={(event) => {
        event.preventDefault();
        void go();
      }}
    >
      <h2>Run it</h2>
      {inputs.map((input) => (
        <InputField
          key={input.name}
          input={input}
          value={values[input.name] ?? ""}
          error={wrong[input.name]}
          onValue={(value) => setValues({ ...values, [input.name]: value })}
        />
      ))}
      <TextField
        label="Repository (optional)"
        value={repository}
        onInput={setRepository}
        placeholder="https://… or a directory on the server"
        hint="Without one it works in an empty repository, where nothing can be delivered."
      />
      {repository.trim() && (
        <TextField label="Branch, tag or ref (optional)" value={ref} onInput={setRef} placeholder="the default branch" />
      )}
      <Select
        label="A person approves"
        value={approval}
        onInput={setApproval}
        options={[
          ["", "as the server decides"],
          ["APPROVAL_POLICY_NONE", "nothing"],
          ["APPROVAL_POLICY_PLAN", "each plan"],
          ["APPROVAL_POLICY_RISKY", "risky calls"],
          ["APPROVAL_POLICY_EVERY", "every call that changes something"],
        ]}
      />
      <ProblemBanner problem={problem} />
      <div>
        <Button kind="primary" type="submit" busy={busy}>
          Run
        </Button>
      </div>
    </form>
  );
}

interface InputProps {
  input: WorkflowInput;
  value: string;
  error: string | undefined;
  onValue: (value: string) => void;
}

function InputField({ input, value, error, onValue }: InputProps) {
  const label = `${visible(input.name)}${input.required ? "" : " (optional)"}`;
  const hint = visible(input.description);
  const known = { label, value, error, onInput: onValue };
  switch (input.type) {
    case "boolean":
      return <Checkbox label={label} checked={value === "true"} onChange={(on) => onValue(String(on))} {...(hint && { hint })} />;
    case "number":
    case "integer":
      return <TextField {...known} type="number" step={input.type === "integer" ? 1 : "any"} {...(hint && { hint })} />;
    case "array":
    case "object":
      return <TextArea {...known} mono rows={3} hint={`${hint ? `${hint} ` : ""}JSON: ${input.type === "array" ? "[…]" : "{…}"}`} />;
    default:
      return <TextArea {...known} rows={2} {...(hint && { hint })} />;
  }
}

/** What stands in a field at first. */
function first(input: WorkflowInput): string {
  if (!input.default_json) return input.type === "boolean" ? "false" : "";
  if (input.type !== "string") return input.default_json;
  try {
    return String(JSON.parse(input.default_json));
  } catch {
    return input.default_json;
  }
}

/** The inputs as values of their types, and what is wrong with those that are none. */
export function read(inputs: readonly WorkflowInput[], values: Values): { given: Record<string, unknown>; faults: Record<string, string> } {
  const given: Record<string, unknown> = {};
  const faults: Record<string, string> = {};
  for (const input of inputs) {
    const text = values[input.name] ?? "";
    if (!text.trim()) {
      if (input.required) faults[input.name] = "This is needed.";
      continue;
    }
    if (input.type === "string") {
      given[input.name] = text;
      continue;
    }
    try {
      const value: unknown = JSON.parse(text);
      if (fits(value, input.type)) given[input.name] = value;
      else faults[input.name] = `This is no ${input.type}.`;
    } catch {
      faults[input.name] = `This is no ${input.type}.`;
    }
  }
  return { given, faults };
}

function fits(value: unknown, type: string): boolean {
  switch (type) {
    case "number":
      return typeof value === "number";
    case "integer":
      return Number.isInteger(value);
    case "boolean":
      return typeof value === "boolean";
    case "array":
      return Array.isArray(value);
    default:
      return typeof value === "object" && value !== null && !Array.isArray(value);
  }
}

function place(repository: string, ref: string): { path?: string; url?: string; ref?: string } {
  const where = /^(?:[a-z+]+:\/\/|[^/\s]+@[^/\s]+:)/i.test(repository) ? { url: repository } : { path: repository };
  return ref ? { ...where, ref } : where;
}

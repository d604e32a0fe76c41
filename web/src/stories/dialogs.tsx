import { useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { post, Problem } from "../api";
import { words } from "../types";
import { Button, Dialog, ProblemBanner, Select, TextArea, TextField, toast } from "../ui";
import { lines } from "../submission/form";
import { PHASES } from "./calls";

interface FormDialogProps {
  title: string;
  yes: string;
  ready: boolean;
  send: () => Promise<unknown>;
  onClose: () => void;
  children: (wrong: (field: string) => string | undefined) => ComponentChildren;
}

function FormDialog({ title, yes, ready, send, onClose, children }: FormDialogProps) {
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<unknown>();
  const wrong = (field: string): string | undefined =>
    problem instanceof Problem && (problem.field === field || problem.field.endsWith(`.${field}`)) ? problem.message : undefined;
  async function go(): Promise<void> {
    setBusy(true);
    setProblem(undefined);
    try {
      await send();
      onClose();
    } catch (error) {
      setProblem(error);
      setBusy(false);
    }
  }
  return (
    <Dialog
      title={title}
      onClose={onClose}
      actions={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="primary" busy={busy} disabled={!ready} onClick={() => void go()}>
            {yes}
          </Button>
        </>
      }
    >
      {children(wrong)}
      <ProblemBanner problem={problem} />
    </Dialog>
  );
}

const ID_HINT = "1 to 128 letters, digits and ._-";

export function NewStory({ onClose, onDone }: { onClose: () => void; onDone: (id: string) => void }) {
  const [id, setId] = useState("");
  const [title, setTitle] = useState("");
  const [description, setDescription] = useState("");
  const [criteria, setCriteria] = useState("");
  const [caseId, setCaseId] = useState("");
  return (
    <FormDialog
      title="Begin a story"
      yes="Begin"
      ready={Boolean(id.trim() && title.trim())}
      onClose={onClose}
      send={async () => {
        const story = { story_id: id.trim(), title: title.trim(), description, acceptance_criteria: lines(criteria), case_id: caseId.trim() };
        await post("/api/stories", { story });
        onDone(id.trim());
      }}
    >
      {(wrong) => (
        <>
          <TextField label="Id" value={id} onInput={setId} error={wrong("story_id")} required hint={ID_HINT} />
          <TextField label="Title" value={title} onInput={setTitle} error={wrong("title")} required />
          <TextArea label="Description" value={description} onInput={setDescription} error={wrong("description")} />
          <TextArea label="Acceptance criteria, one a line" rows={3} value={criteria} onInput={setCriteria} error={wrong("acceptance_criteria")} />
          <TextField label="Case" value={caseId} onInput={setCaseId} error={wrong("case_id")} hint="The larger undertaking that it belongs to." />
        </>
      )}
    </FormDialog>
  );
}

const ROLES = [
  ["UNSPECIFIED", "Anybody's"],
  ["DEV", "Developer"],
  ["QA", "QA"],
  ["ARCHITECT", "Architect"],
  ["DEVOPS", "DevOps"],
  ["DATA", "Data"],
] as const;

interface PartProps {
  story: string;
  version: number;
  onClose: () => void;
  onDone: () => void;
}

export function NewTask({ story, onClose, onDone }: PartProps) {
  const [id, setId] = useState("");
  const [title, setTitle] = useState("");
  const [description, setDescription] = useState("");
  const [role, setRole] = useState("UNSPECIFIED");
  const [before, setBefore] = useState("");
  return (
    <FormDialog
      title="Add a task"
      yes="Add"
      ready={Boolean(id.trim() && title.trim())}
      onClose={onClose}
      send={async () => {
        const task = { task_id: id.trim(), title: title.trim(), description, role: `ROLE_${role}`, depends_on: lines(before) };
        await post(`/api/stories/${encodeURIComponent(story)}/tasks`, { task });
        onDone();
      }}
    >
      {(wrong) => (
        <>
          <TextField label="Id" value={id} onInput={setId} error={wrong("task_id")} required hint={ID_HINT} />
          <TextField label="Title" value={title} onInput={setTitle} error={wrong("title")} required />
          <TextArea label="Description" value={description} onInput={setDescription} error={wrong("description")} />
          <Select label="Role" value={role} options={ROLES} onInput={setRole} error={wrong("role")} />
          <TextArea label="Tasks that come first, one id a line" mono rows={2} value={before} onInput={setBefore} error={wrong("depends_on")} />
        </>
      )}
    </FormDialog>
  );
}

const STATES = [
  ["ACCEPTED", "Accepted: it holds"],
  ["PROPOSED", "Proposed: it does not hold yet"],
] as const;

export function NewDecision({ story, onClose, onDone }: PartProps) {
  const [id, setId] = useState("");
  const [title, setTitle] = useState("");
  const [rationale, setRationale] = useState("");
  const [alternatives, setAlternatives] = useState("");
  const [state, setState] = useState("ACCEPTED");
  const [supersedes, setSupersedes] = useState("");
  return (
    <FormDialog
      title="Add a decision"
      yes="Add"
      ready={Boolean(id.trim() && title.trim())}
      onClose={onClose}
      send={async () => {
        const decision = {
          decision_id: id.trim(),
          story_id: story,
          title: title.trim(),
          rationale,
          alternatives: lines(alternatives),
          state: `DECISION_STATE_${state}`,
          supersedes: supersedes.trim(),
        };
        await post("/api/decisions", { decision });
        onDone();
      }}
    >
      {(wrong) => (
        <>
          <TextField label="Id" value={id} onInput={setId} error={wrong("decision_id")} required hint={ID_HINT} />
          <TextField label="Title" value={title} onInput={setTitle} error={wrong("title")} required />
          <TextArea label="Why" value={rationale} onInput={setRationale} error={wrong("rationale")} />
          <TextArea label="What was not chosen, one a line" rows={2} value={alternatives} onInput={setAlternatives} error={wrong("alternatives")} />
          <Select label="State" value={state} options={STATES} onInput={setState} error={wrong("state")} />
          <TextField label="Takes the place of" value={supersedes} onInput={setSupersedes} error={wrong("supersedes")} hint="The id of another decision of this story." />
        </>
      )}
    </FormDialog>
  );
}

export function Transition({ story, version, phase, onClose, onDone }: PartProps & { phase: string }) {
  const at = PHASES.findIndex((one) => one === phase);
  const [to, setTo] = useState<string>(PHASES[Math.min(at + 1, PHASES.length - 1)] ?? "PLAN");
  const [reason, setReason] = useState("");
  const back = PHASES.findIndex((one) => one === to) < at;
  const options = PHASES.filter((_, index) => index <= at + 1 && index !== at).map((one) => [one, words(one)] as const);
  return (
    <FormDialog
      title="Move to another phase"
      yes="Move"
      ready={to !== phase && (!back || Boolean(reason.trim()))}
      onClose={onClose}
      send={async () => {
        await post(`/api/stories/${encodeURIComponent(story)}/phase`, { phase: `PHASE_${to}`, reason: reason.trim(), expected_version: version });
        toast(`The story is in ${words(to)} now.`);
        onDone();
      }}
    >
      {(wrong) => (
        <>
          <Select label="Phase" value={to} options={options} onInput={setTo} error={wrong("phase") ?? wrong("expected_version")} hint={`It stands in ${words(phase)}: one phase on, or back to any earlier one.`} />
          <TextArea label={back ? "Why it goes back" : "Why (optional)"} rows={2} value={reason} onInput={setReason} error={wrong("reason")} required={back} />
        </>
      )}
    </FormDialog>
  );
}

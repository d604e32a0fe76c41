import { useState } from "preact/hooks";
import { get, post, Problem, remove } from "../api";
import { bare } from "../types";
import {
  age,
  Button,
  Checkbox,
  Confirm,
  Dialog,
  Empty,
  Loading,
  PageHead,
  ProblemBanner,
  Select,
  StatusBadge,
  Table,
  TextArea,
  TextField,
  toast,
  useLoad,
} from "../ui";
import { ROLE_OPTIONS } from "./executions";

interface AgentInfo {
  agent_id: string;
  capabilities?: { supported_tasks: string[]; model_profile: string; max_concurrent_tasks: number; languages: string[] } | null;
  endpoint: string;
  registered_at_ms: number;
  running_tasks: number;
}

interface Council {
  council_id: string;
  role: string;
  num_agents: number;
  agents: AgentInfo[];
  status: string;
  model: string;
}

const ROLES = ROLE_OPTIONS.filter(([value]) => value);
const AGENT_TYPES = [
  ["", "Either"],
  ["tools", "The fleet's own"],
  ["external", "Run by others"],
] as const;

type Open = { kind: "create" } | { kind: "delete"; role: string } | { kind: "join"; role: string } | { kind: "leave"; role: string; agent: string };

/** Councils: who is in them, and who comes and goes. */
export function CouncilsView() {
  const found = useLoad<{ councils: Council[] }>((signal) => get("/api/councils", { include_agents: true }, signal), "councils", 10_000);
  const [open, setOpen] = useState<Open>();
  const close = (): void => setOpen(undefined);
  const councils = found.value?.councils;
  return (
    <>
      <PageHead title="Councils" lead="The agents that a role's tasks get, unless a task says otherwise.">
        <Button kind="primary" onClick={() => setOpen({ kind: "create" })}>
          Create a council
        </Button>
      </PageHead>
      <div class="stack">
        <ProblemBanner problem={found.problem} retry={found.reload} />
        {!councils && !found.problem && <Loading what="Looking for councils" />}
        {councils && councils.length === 0 && (
          <Empty title="No councils yet.">
            <p>Without a council, a task gets three agents.</p>
          </Empty>
        )}
        {councils?.map((council) => (
          <section key={council.council_id} class="card" aria-label={`Council ${council.role}`}>
            <div class="card-head">
              <div class="row">
                <h2>{bare(council.role)}</h2>
                <StatusBadge status={council.status} tone={council.status === "busy" ? "live" : council.status === "active" ? "good" : "calm"} />
                <span class="muted small">
                  {council.num_agents} agent{council.num_agents === 1 ? "" : "s"}
                  {council.model ? `, ${council.model}` : ""}
                </span>
              </div>
              <div class="row">
                <Button small onClick={() => setOpen({ kind: "join", role: council.role })}>
                  Register an agent
                </Button>
                <Button small kind="quiet" label={`Delete the council ${council.role}`} onClick={() => setOpen({ kind: "delete", role: council.role })}>
                  Delete
                </Button>
              </div>
            </div>
            {council.agents.length === 0 ? (
              <p class="muted">No agents.</p>
            ) : (
              <Table
                caption={`Agents of ${council.role}`}
                rows={council.agents}
                keyOf={(agent) => agent.agent_id}
                columns={[
                  { name: "Agent", heading: true, cell: (agent) => <code>{agent.agent_id}</code> },
                  { name: "Runs", cell: (agent) => agent.endpoint || "in the fleet" },
                  { name: "Model profile", cell: (agent) => agent.capabilities?.model_profile || "default" },
                  { name: "At work on", number: true, cell: (agent) => agent.running_tasks },
                  { name: "Joined", minor: true, cell: (agent) => age(agent.registered_at_ms) },
                  {
                    name: "",
                    cell: (agent) => (
                      <Button small kind="quiet" label={`Unregister ${agent.agent_id}`} onClick={() => setOpen({ kind: "leave", role: council.role, agent: agent.agent_id })}>
                        Unregister
                      </Button>
                    ),
                  },
                ]}
              />
            )}
          </section>
        ))}
      </div>
      {open?.kind === "create" && <CreateDialog onClose={close} onDone={found.reload} />}
      {open?.kind === "join" && <JoinDialog role={open.role} onClose={close} onDone={found.reload} />}
      {open?.kind === "delete" && (
        <Confirm
          title={`Delete the council ${bare(open.role)}?`}
          yes="Delete it"
          onClose={close}
          onYes={async () => {
            await remove(`/api/councils/${encodeURIComponent(open.role)}`);
            found.reload();
          }}
        >
          <p>Its agents are removed. Running tasks continue.</p>
        </Confirm>
      )}
      {open?.kind === "leave" && (
        <Confirm
          title={`Unregister ${open.agent}?`}
          yes="Unregister"
          onClose={close}
          onYes={async () => {
            await remove(`/api/councils/${encodeURIComponent(open.role)}/agents/${encodeURIComponent(open.agent)}`);
            found.reload();
          }}
        >
          <p>It leaves the council {bare(open.role)}. Runs that it has begun go on.</p>
        </Confirm>
      )}
    </>
  );
}

interface DialogProps {
  onClose: () => void;
  onDone: () => void;
}

/** Sends what a dialogue holds; a refusal is shown at its field. */
function useSending(send: () => Promise<unknown>, { onClose, onDone }: DialogProps) {
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<unknown>();
  async function go(): Promise<void> {
    setBusy(true);
    setProblem(undefined);
    try {
      await send();
      onDone();
      onClose();
    } catch (error) {
      setProblem(error);
      setBusy(false);
    }
  }
  const wrong = (field: string): string | undefined => (problem instanceof Problem && problem.field === field ? problem.message : undefined);
  return { busy, problem, go, wrong };
}

function CreateDialog(props: DialogProps) {
  const [role, setRole] = useState("DEV");
  const [agents, setAgents] = useState("");
  const [rounds, setRounds] = useState("");
  const [profile, setProfile] = useState("");
  const [review, setReview] = useState(true);
  const [kind, setKind] = useState("");
  const [temperature, setTemperature] = useState("");
  const [instructions, setInstructions] = useState("");
  const { busy, problem, go, wrong } = useSending(async () => {
    const params = { ...(temperature.trim() && { temperature: temperature.trim() }), ...(instructions.trim() && { instructions: instructions.trim() }) };
    await post("/api/councils", {
      role,
      num_agents: Number(agents) || 0,
      config: { deliberation_rounds: Number(rounds) || 0, enable_peer_review: review, model_profile: profile.trim(), agent_type: kind, custom_params: params },
    });
    toast(`The council ${role} is there.`);
  }, props);
  return (
    <Dialog
      title="Create a council"
      onClose={props.onClose}
      actions={
        <>
          <Button onClick={props.onClose}>Cancel</Button>
          <Button kind="primary" busy={busy} onClick={() => void go()}>
            Create
          </Button>
        </>
      }
    >
      <div class="fields">
        <Select label="Role" value={role} options={ROLES} onInput={setRole} error={wrong("role")} />
        <TextField label="Agents" type="number" min={0} value={agents} placeholder="3" onInput={setAgents} error={wrong("num_agents")} />
        <TextField label="Rounds of review" type="number" min={0} value={rounds} placeholder="1" onInput={setRounds} error={wrong("config.deliberation_rounds")} />
        <TextField label="Model profile" value={profile} placeholder="Default" onInput={setProfile} error={wrong("config.model_profile")} />
        <Select label="Agents are" value={kind} options={AGENT_TYPES} onInput={setKind} error={wrong("config.agent_type")} />
        <TextField label="Temperature" type="number" min={0} max={2} step={0.1} value={temperature} onInput={setTemperature} />
      </div>
      <Checkbox label="Peers review the candidates" checked={review} onChange={setReview} />
      <TextArea label="Instructions beside their own" rows={3} value={instructions} onInput={setInstructions} error={wrong("config.custom_params")} />
      <ProblemBanner problem={problem} />
    </Dialog>
  );
}

function JoinDialog({ role, ...props }: DialogProps & { role: string }) {
  const [agent, setAgent] = useState("");
  const [endpoint, setEndpoint] = useState("");
  const [profile, setProfile] = useState("");
  const { busy, problem, go, wrong } = useSending(async () => {
    await post(`/api/councils/${encodeURIComponent(role)}/agents`, {
      agent_id: agent.trim(),
      endpoint: endpoint.trim(),
      capabilities: { model_profile: profile.trim() },
    });
    toast(`${agent.trim()} is in the council ${bare(role)}.`);
  }, props);
  return (
    <Dialog
      title={`Register an agent for ${bare(role)}`}
      onClose={props.onClose}
      actions={
        <>
          <Button onClick={props.onClose}>Cancel</Button>
          <Button kind="primary" busy={busy} onClick={() => void go()}>
            Register
          </Button>
        </>
      }
    >
      <TextField label="Agent id" value={agent} onInput={setAgent} error={wrong("agent_id")} required />
      <TextField label="Endpoint" value={endpoint} placeholder="The fleet runs it" onInput={setEndpoint} error={wrong("endpoint")} hint="host:port of an agent that others run." />
      <TextField label="Model profile" value={profile} placeholder="Default" onInput={setProfile} error={wrong("capabilities.model_profile")} />
      <ProblemBanner problem={problem} />
    </Dialog>
  );
}

// The form of a task, part by part. `set` changes fields, `wrong` has what a field of the request was refused for.
import type { ComponentChildren } from "preact";
import { EntityPicker, type Entity } from "../entities/picker";
import { Button, Checkbox, Select, shortRepository, TextArea, TextField } from "../ui";
import { visible } from "../visible";
import { lines, type CheckRow, type TaskForm } from "./form";

export interface PartProps {
  form: TaskForm;
  set: (changes: Partial<TaskForm>) => void;
  wrong: (...fields: string[]) => string | undefined;
}

function Section({ title, children, aside }: { title: string; children: ComponentChildren; aside?: ComponentChildren }) {
  return (
    <section class="card stack" aria-label={title}>
      <div class="row-spread">
        <h2>{title}</h2>
        {aside}
      </div>
      {children}
    </section>
  );
}

const MODES = [
  ["orchestrate", "Put the winner on a branch"],
  ["deliberate", "Rank the proposals only"],
] as const;
const ROLES = [
  ["DEV", "Developer"],
  ["QA", "QA"],
  ["ARCHITECT", "Architect"],
  ["DEVOPS", "DevOps"],
  ["DATA", "Data"],
] as const;
const UNCOMMITTED = [
  ["", "Refuse if there are any"],
  ["INCLUDE", "Start from them"],
  ["IGNORE", "Leave them out"],
] as const;
const APPROVALS = [
  ["", "The server's default"],
  ["NONE", "Nothing"],
  ["PLAN", "The plan, before the first change"],
  ["RISKY", "Every risky call"],
  ["EVERY", "Every call with a side effect"],
] as const;
const PLANNING = [
  ["", "The server's default"],
  ["SIMPLE", "Simple: one plan first"],
  ["AGENTIC", "Agentic: step by step"],
  ["HYBRID", "Hybrid: by complexity"],
] as const;

interface FirstProps extends PartProps {
  /** Places of repositories that tasks were about, the newest first. */
  recent: string[];
  aside?: ComponentChildren;
}

const MOST_RECENT = 3;

/** All that a task needs: what, where, by how many. */
export function TaskPart({ form, set, wrong, recent, aside }: FirstProps) {
  return (
    <Section title="Task">
      <TextArea
        label="What is to be done"
        name="task_description"
        rows={5}
        value={form.text}
        required
        onInput={(text) => set({ text })}
        error={wrong("task_description")}
      />
      <div class="fields first-fields">
        <TextField
          label="Repository"
          name="repo"
          value={form.repo}
          list={recent}
          onInput={(repo) => set({ repo, bundle: false })}
          error={wrong("repo", "repo.path", "repo.url")}
          placeholder="/home/me/project or https://…"
          hint={
            form.bundle
              ? "The bundle below is used."
              : recent.length > 0 && (
                  <>
                    Recent:{" "}
                    {recent.slice(0, MOST_RECENT).map((one) => (
                      <button type="button" key={one} class="link-button recent" title={visible(one)} onClick={() => set({ repo: one, bundle: false })}>
                        {visible(shortRepository(one))}
                      </button>
                    ))}
                  </>
                )
          }
        />
        <TextField label="Agents" type="number" min={1} value={form.agents} placeholder="3, or the council's" onInput={(agents) => set({ agents })} error={wrong("num_agents")} />
      </div>
      {aside}
    </Section>
  );
}

interface RepositoryProps extends PartProps {
  bundle: File | undefined;
  onBundle: (file: File | undefined) => void;
}

export function RepositoryPart({ form, set, wrong, bundle, onBundle }: RepositoryProps) {
  const failed = wrong("repo.upload_id");
  return (
    <Section title="Version of the repository">
      <div class="fields">
        <TextField label="Branch, tag or commit" value={form.repoRef} onInput={(repoRef) => set({ repoRef })} error={wrong("repo.ref", "repo.commit")} placeholder="Default branch" />
        <TextField
          label="Subdirectory"
          value={form.repoSubdirectory}
          onInput={(repoSubdirectory) => set({ repoSubdirectory })}
          error={wrong("repo.subdirectory")}
          placeholder="Its root"
        />
        <Select label="Uncommitted changes" value={form.uncommitted} options={UNCOMMITTED} onInput={(uncommitted) => set({ uncommitted })} error={wrong("repo.uncommitted")} />
        <div class={`field${failed ? " field-wrong" : ""}`}>
          <label for="bundle">A git bundle from here instead</label>
          <input
            id="bundle"
            class="input"
            type="file"
            aria-describedby="bundle-hint"
            aria-invalid={Boolean(failed) || undefined}
            onChange={(event) => {
              onBundle(event.currentTarget.files?.[0]);
              set({ bundle: Boolean(event.currentTarget.files?.length) });
            }}
          />
          <p class="hint" id="bundle-hint">
            {bundle ? bundle.name : "Made by git bundle create project.bundle --all"}
          </p>
          {failed && <p class="field-error">{failed}</p>}
        </div>
      </div>
    </Section>
  );
}

export function AgentsPart({ form, set, wrong, profiles }: PartProps & { profiles: string[] }) {
  return (
    <Section title="How agents work">
      <TextArea
        label="Further context"
        rows={2}
        value={form.context}
        onInput={(context) => set({ context })}
        error={wrong("context")}
        hint="Given to the agents as it is."
      />
      <div class="fields">
        <Select label="Mode" value={form.mode} options={MODES} onInput={(mode) => set({ mode: mode as TaskForm["mode"] })} />
        <Select label="Role" value={form.role} options={ROLES} onInput={(role) => set({ role })} error={wrong("role")} />
        <TextField label="Rounds of review" type="number" min={0} value={form.rounds} placeholder="1, or the council's" onInput={(rounds) => set({ rounds })} error={wrong("rounds", "deliberation_rounds")} />
        <TextField
          label="Model profile"
          value={form.profile}
          placeholder="The council's, or the default"
          list={profiles}
          onInput={(profile) => set({ profile })}
          error={wrong("model_profile")}
        />
        <Select label="Planning" value={form.planning} options={PLANNING} onInput={(planning) => set({ planning })} error={wrong("planning_mode")} />
        <Select label="To be approved" value={form.approval} options={APPROVALS} onInput={(approval) => set({ approval })} error={wrong("approval")} />
        <TextField label="Priority" type="number" min={0} max={9} value={form.priority} placeholder="0 to 9" onInput={(priority) => set({ priority })} error={wrong("priority")} />
      </div>
      <div class="checks-row">
        <Checkbox label="Peers review the candidates" checked={form.peerReview} onChange={(peerReview) => set({ peerReview })} />
        <Checkbox label="An architect chooses among the best" checked={form.architect} onChange={(architect) => set({ architect })} />
        <Checkbox label="Tools that change things" checked={form.tools} onChange={(tools) => set({ tools })} />
        {form.mode === "orchestrate" && (
          <Checkbox label="Split into subtasks first" checked={form.deriveSubtasks} onChange={(deriveSubtasks) => set({ deriveSubtasks })} />
        )}
      </div>
    </Section>
  );
}

export function ChecksPart({ form, set, wrong }: PartProps) {
  function change(index: number, changes: Partial<CheckRow>): void {
    set({ checks: form.checks.map((check, at) => (at === index ? { ...check, ...changes } : check)) });
  }
  return (
    <Section
      title="Checks"
      aside={
        <Button small onClick={() => set({ checks: [...form.checks, { name: "", command: "", required: true, timeout: "" }] })}>
          Add a check
        </Button>
      }
    >
      {form.checks.length === 0 && <p class="muted">None given: the repository's own checks are detected.</p>}
      {form.checks.map((check, index) => (
        <fieldset key={index} class="check-row">
          <legend class="sr-only">Check {index + 1}</legend>
          <TextField
            label="Command"
            value={check.command}
            placeholder="python -m pytest -q"
            onInput={(command) => change(index, { command })}
            error={wrong(`constraints.checks[${index}].command`, `constraints.checks[${index}]`, `checks[${index}].command`)}
          />
          <TextField label="Name" value={check.name} placeholder="The command" onInput={(name) => change(index, { name })} error={wrong(`constraints.checks[${index}].name`)} />
          <TextField label="Seconds" type="number" min={0} value={check.timeout} onInput={(timeout) => change(index, { timeout })} error={wrong(`constraints.checks[${index}].timeout_seconds`)} />
          <Checkbox label="Required" checked={check.required} onChange={(required) => change(index, { required })} />
          <Button small kind="quiet" label={`Remove check ${index + 1}`} onClick={() => set({ checks: form.checks.filter((_, at) => at !== index) })}>
            Remove
          </Button>
        </fieldset>
      ))}
    </Section>
  );
}

export function LimitsPart({ form, set, wrong }: PartProps) {
  const of = (name: string): string | undefined => wrong(`constraints.${name}`, name, `constraints.limits.${name}`);
  return (
    <>
      <div class="fields">
        <TextField label="Seconds" type="number" min={0} value={form.timeoutSeconds} onInput={(timeoutSeconds) => set({ timeoutSeconds })} error={of("timeout_seconds")} placeholder="1800" />
        <TextField label="Iterations" type="number" min={0} value={form.maxIterations} onInput={(maxIterations) => set({ maxIterations })} error={of("max_iterations")} placeholder="100" />
        <TextField label="Tool calls" type="number" min={0} value={form.maxToolCalls} onInput={(maxToolCalls) => set({ maxToolCalls })} error={of("max_tool_calls")} placeholder="300" />
        <TextField label="Tokens" type="number" min={0} value={form.maxTokens} onInput={(maxTokens) => set({ maxTokens })} error={of("max_tokens")} />
        <TextField label="Cost" type="number" min={0} step="any" value={form.maxCost} onInput={(maxCost) => set({ maxCost })} error={of("max_cost")} hint="For each agent, in the currency of the prices." />
      </div>
      <div class="fields fields-broad">
        <TextArea label="Requirements, one a line" rows={3} value={form.requirements} onInput={(requirements) => set({ requirements })} error={of("requirements")} />
        <TextArea label="Rubric" rows={3} value={form.rubric} onInput={(rubric) => set({ rubric })} error={of("rubric")} hint="By what the proposals are judged." />
        <TextArea label="Paths that may be written, one a line" mono rows={3} value={form.allowedPaths} onInput={(allowedPaths) => set({ allowedPaths })} error={of("allowed_paths")} hint="None: the whole repository." />
        <TextArea label="Hosts that may be reached, one a line" mono rows={3} value={form.allowedHosts} onInput={(allowedHosts) => set({ allowedHosts })} error={of("network.allowed_hosts") ?? of("allowed_hosts")} hint="None: the server's default." />
        <TextArea label="Tools that are not offered, one a line" mono rows={3} value={form.deniedTools} onInput={(deniedTools) => set({ deniedTools })} error={of("denied_tools")} />
      </div>
    </>
  );
}

/** The namespaces with those of chosen memories: a task is told only what stands in its own. */
function reaching(namespaces: string, entities: readonly Entity[]): string {
  const known = new Set(lines(namespaces));
  const more = new Set(entities.map((one) => one.namespace ?? "").filter((one) => one && !known.has(one)));
  return more.size ? [...known, ...more].join("\n") : namespaces;
}

export function MemoryPart({ form, set, wrong }: PartProps) {
  return (
    <Section title="Memory and context">
      <div class="checks-row">
        <Checkbox label="Recall what fits" checked={form.memoryRead || form.entities.length > 0} onChange={(memoryRead) => set(memoryRead ? { memoryRead } : { memoryRead, entities: [] })} />
        <Checkbox label="Remember the outcome" checked={form.memoryWrite} onChange={(memoryWrite) => set({ memoryWrite })} />
      </div>
      <div class="fields fields-broad">
        <TextArea
          label="Namespaces, one a line"
          mono
          rows={2}
          value={form.namespaces}
          placeholder={"fleet\nrepository:acme/app"}
          onInput={(namespaces) => set({ namespaces })}
          error={wrong("memory.namespaces", "memory")}
          hint="Where a chosen memory stands is added. None: the repository's own."
        />
        {form.mode === "orchestrate" && (
          <TextField label="Story" value={form.storyId} onInput={(storyId) => set({ storyId })} error={wrong("story_id")} hint="Its id, where the task belongs to one." />
        )}
      </div>
      <EntityPicker
        chosen={form.entities}
        onChange={(entities) => set(entities.length ? { entities, memoryRead: true, namespaces: reaching(form.namespaces, entities) } : { entities })}
        namespaces={lines(form.namespaces)}
        hint="The agents are told what memory has on these names, whatever else fits; memory is read for it. At most 30."
        problem={wrong("memory.entities")}
      />
    </Section>
  );
}

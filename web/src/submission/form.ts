// What the form of a task holds, and the request that it makes.
import type { Entity } from "../entities/picker";
import { randomName } from "../names";
import { bare } from "../types";

export interface CheckRow {
  readonly name: string;
  readonly command: string;
  readonly required: boolean;
  readonly timeout: string;
}

export interface TaskForm {
  readonly taskId: string;
  readonly text: string;
  readonly context: string;
  readonly mode: "deliberate" | "orchestrate";
  /** A directory on the server, or a URL. */
  readonly repo: string;
  /** Whether a bundle from this machine takes its place. */
  readonly bundle: boolean;
  readonly repoRef: string;
  readonly repoSubdirectory: string;
  readonly uncommitted: string;
  readonly role: string;
  readonly agents: string;
  readonly rounds: string;
  readonly peerReview: boolean;
  readonly architect: boolean;
  readonly deriveSubtasks: boolean;
  readonly tools: boolean;
  readonly checks: readonly CheckRow[];
  readonly rubric: string;
  readonly requirements: string;
  readonly allowedPaths: string;
  readonly allowedHosts: string;
  readonly deniedTools: string;
  readonly maxIterations: string;
  readonly maxToolCalls: string;
  readonly maxTokens: string;
  readonly maxCost: string;
  readonly timeoutSeconds: string;
  readonly approval: string;
  readonly planning: string;
  readonly profile: string;
  readonly priority: string;
  readonly memoryRead: boolean;
  readonly memoryWrite: boolean;
  readonly namespaces: string;
  readonly entities: readonly Entity[];
  readonly storyId: string;
  readonly branch: string;
  readonly push: boolean;
}

/** An id for a task, made here, so that a request that is sent twice is one task. */
export function newTaskId(): string {
  return randomName(`web-${new Date().toISOString().slice(0, 10).replaceAll("-", "")}`);
}

export function emptyForm(): TaskForm {
  return {
    taskId: newTaskId(),
    text: "",
    context: "",
    mode: "orchestrate",
    repo: "",
    bundle: false,
    repoRef: "",
    repoSubdirectory: "",
    uncommitted: "",
    role: "DEV",
    agents: "",
    rounds: "",
    peerReview: true,
    architect: false,
    deriveSubtasks: false,
    tools: true,
    checks: [],
    rubric: "",
    requirements: "",
    allowedPaths: "",
    allowedHosts: "",
    deniedTools: "",
    maxIterations: "",
    maxToolCalls: "",
    maxTokens: "",
    maxCost: "",
    timeoutSeconds: "",
    approval: "",
    planning: "",
    profile: "",
    priority: "",
    memoryRead: false,
    memoryWrite: false,
    namespaces: "",
    entities: [],
    storyId: "",
    branch: "",
    push: false,
  };
}

/** Lines that say something, trimmed. */
export function lines(text: string): string[] {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
}

type Body = Record<string, unknown>;

/** The same without what was not given: the server's own defaults hold there. */
function given(fields: Body): Body {
  const found: Body = {};
  for (const [name, value] of Object.entries(fields)) {
    if (value === undefined || value === "" || (Array.isArray(value) && !value.length)) continue;
    found[name] = value;
  }
  return found;
}

function number(text: string): number | undefined {
  const value = Number(text);
  return text.trim() && Number.isFinite(value) ? value : undefined;
}

function whenAny(fields: Body): Body | undefined {
  return Object.keys(fields).length ? fields : undefined;
}

function constraints(form: TaskForm): Body | undefined {
  const hosts = lines(form.allowedHosts);
  return whenAny(
    given({
      rubric: form.rubric.trim(),
      requirements: lines(form.requirements),
      allowed_paths: lines(form.allowedPaths),
      denied_tools: lines(form.deniedTools),
      max_iterations: number(form.maxIterations),
      max_tool_calls: number(form.maxToolCalls),
      max_tokens: number(form.maxTokens),
      max_cost: number(form.maxCost),
      timeout_seconds: number(form.timeoutSeconds),
      network: hosts.length ? { allowed_hosts: hosts } : undefined,
      checks: form.checks
        .filter((check) => check.command.trim())
        .map((check) =>
          given({
            name: check.name.trim(),
            command: check.command.trim(),
            timeout_seconds: number(check.timeout),
            required: check.required ? undefined : false,
          }),
        ),
    }),
  );
}

/** Whether a place is an address and no directory: `https://…`, `git@host:path`. */
export function isUrl(place: string): boolean {
  return /^[a-z][a-z0-9+.-]*:\/\/|^[\w.-]+@[\w.-]+:/i.test(place.trim());
}

/** Where the repository is, but for one that has to be uploaded first. */
export function repository(form: TaskForm): Body {
  const place = form.repo.trim();
  return given({
    ...(isUrl(place) ? { url: place } : { path: place }),
    ref: form.repoRef.trim(),
    subdirectory: form.repoSubdirectory.trim(),
    uncommitted: !isUrl(place) && form.uncommitted ? `UNCOMMITTED_CHANGES_${form.uncommitted}` : "",
  });
}

/** How memory is used. What was chosen is asked of it by name, so it is read then. */
function memory(form: TaskForm): Body | undefined {
  const entities = form.entities.map((one) => one.name.trim()).filter(Boolean);
  const read = form.memoryRead || entities.length > 0;
  if (!read && !form.memoryWrite) return undefined;
  return given({ read, write: form.memoryWrite, namespaces: lines(form.namespaces), entities });
}

/** The request that a form stands for. `repo` is the repository as the server knows it. */
export function requestOf(form: TaskForm, repo: Body): Body {
  const common = given({
    task_id: form.taskId.trim(),
    task_description: form.text.trim(),
    role: form.role,
    constraints: constraints(form),
    repo,
    context: form.context.trim(),
    model_profile: form.profile.trim(),
    approval: form.approval && `APPROVAL_POLICY_${form.approval}`,
    planning_mode: form.planning && `PLANNING_MODE_${form.planning}`,
    enable_tools: form.tools ? undefined : false,
    memory: memory(form),
    priority: number(form.priority),
  });
  if (form.mode === "deliberate") {
    const deliberate = given({
      ...common,
      rounds: number(form.rounds),
      num_agents: number(form.agents),
      enable_peer_review: form.peerReview ? undefined : false,
      architect_top_k: form.architect ? 3 : undefined,
    });
    return { deliberate };
  }
  const options = given({
    enable_peer_review: form.peerReview,
    deliberation_rounds: number(form.rounds),
    num_agents: number(form.agents),
    enable_architect_selection: form.architect || undefined,
    derive_subtasks: form.deriveSubtasks || undefined,
  });
  const delivery = whenAny(given({ branch: form.branch.trim(), push: form.push || undefined }));
  return { orchestrate: given({ ...common, options, story_id: form.storyId.trim(), delivery }) };
}

/** What can be seen to be wrong before anything is sent: a field of the request and the words for it. */
export function wrongWith(form: TaskForm, bundle: File | undefined): [field: string, words: string] | undefined {
  if (!form.text.trim()) return ["task_description", "Say what is to be done."];
  if (!form.taskId.trim()) return ["task_id", "Choose an id; it makes the request repeatable."];
  if (!form.bundle && !form.repo.trim()) return ["repo.path", "Name a directory on the server, or a URL."];
  if (form.bundle && !bundle) return ["repo.upload_id", "Choose a bundle."];
  return undefined;
}

/** The request's field without what leads to it: `deliberate.repo.path` is `repo.path`. */
export function fieldName(field: string): string {
  return field.replace(/^(deliberate|orchestrate)\./, "").replace(/^options\./, "");
}

/** What is known of an execution whose task is to run once more. */
export interface Again {
  readonly kind: string;
  readonly role: string;
  readonly task_description: string;
  readonly repository: string;
  readonly agent_count: number;
}

/** A form for the same task under a new id; what an execution does not tell is as it is by itself. */
export function formAgain(said: Again): TaskForm {
  const role = bare(said.role);
  return {
    ...emptyForm(),
    text: said.task_description,
    repo: said.repository.startsWith("upload:") ? "" : said.repository,
    bundle: said.repository.startsWith("upload:"),
    mode: bare(said.kind) === "DELIBERATION" ? "deliberate" : "orchestrate",
    ...(role && role !== "UNSPECIFIED" && { role }),
    ...(said.agent_count > 0 && { agents: String(said.agent_count) }),
  };
}

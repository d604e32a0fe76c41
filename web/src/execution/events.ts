/** Events as they are stored, as far as the page reads them. What an older log lacks is absent. */

export interface StoredEvent {
  sequence: number;
  event_id: string;
  agent_id: string;
  type: string;
  at_ms: number;
  payload: Record<string, unknown>;
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  cached_tokens: number;
  model_calls: number;
  tool_calls: number;
  duration_ms: number;
  cost: number;
}

export interface Blob {
  digest: string;
  size: number;
  media_type: string;
}

export interface TestSummary {
  passed: number;
  failed: number;
  errors: number;
  skipped: number;
  duration_ms: number;
  failing: string[];
}

export interface Artifacts {
  commit_sha: string;
  branch: string;
  patch: Blob | null;
  files_changed: string[];
  insertions: number;
  deletions: number;
  tests: TestSummary | null;
}

export interface Candidate {
  candidate_id: string;
  agent_id: string;
  role: string;
  summary: string;
  stop_reason: string;
  artifacts: Artifacts;
  usage?: Partial<Usage>;
  submitted_at: string;
  model?: string;
  error?: string;
  author_id?: string;
  round?: number;
  revises?: string;
}

export interface CheckResult {
  kind: string;
  name: string;
  passed: boolean;
  required: boolean;
  score: number;
  message: string;
  output: string;
  exit_code: number | null;
  problems: string[];
  warnings: number;
  tests: TestSummary | null;
  details: Record<string, string>;
  duration_ms: number;
  skipped_reason: string;
}

export type Verdict = "verified" | "unverified" | "refuted";

/** An old test that a candidate changed. */
export interface ChangedTest {
  path: string;
  name: string;
  before: string;
  after: string;
}

export interface CheckReport {
  candidate_id: string;
  results: CheckResult[];
  verdict?: Verdict | null;
  reasons?: string[];
  changed_tests?: ChangedTest[];
}

export interface SuiteBaseline {
  command: string;
  tests: TestSummary | null;
  uncollected: string[];
  hung: string[];
  exit_code: number | null;
  stopped: string;
  unusable: string;
}

/** What the tests say of the untouched commit. */
export interface Baseline {
  suites: SuiteBaseline[];
  duration_ms: number;
}

export interface RunningChecks {
  command: string;
  since: number;
}

export interface HandDelivery {
  candidate_id: string;
  delivered: Delivered;
  by: string;
  reason: string;
}

export interface Proof {
  command: string;
  expected: string;
  outcome: string;
  seen: string;
  passes_on_own: boolean;
}

export interface Finding {
  text: string;
  file: string;
  line: number;
  must_fix: boolean;
  proof?: Proof | null;
}

export interface Critique {
  reviewer_id: string;
  candidate_id: string;
  round: number;
  verdict: string;
  score: number;
  content: string;
  findings: Finding[];
  error: string;
}

export interface Vote {
  judge_id: string;
  sample: number;
  order: string[];
  choice: string;
  reason: string;
  error: string;
}

export interface Ranked {
  candidate_id: string;
  rank: number;
  score: number;
  accepted: boolean;
  duplicates: string[];
  reason: string;
  evidence?: number;
  review?: number | null;
  votes?: number | null;
  tests?: number | null;
  verdict?: Verdict | null;
  verdict_reasons?: string[];
}

export interface Crossing {
  candidate_id: string;
  passed: string[];
  failed: { test: string; message: string }[];
  unsaid: string[];
  note: string;
}

export interface TestSet {
  candidates: string[];
  tests: string[];
  crossings: Crossing[];
}

/** The new tests of candidates on each other's sources. */
export interface Examination {
  candidates: string[];
  sets: TestSet[];
  conflicts: { candidate_id: string; test: string; other_id: string; other_test: string }[];
  notes: string[];
}

export interface Call {
  call_id: string;
  name: string;
  arguments: string;
}

export interface MemoryFindings {
  coverage: number;
  gaps: string[];
  sources: string[];
  content: string;
}

export interface ApprovalRequest {
  approval_id: string;
  agent_id: string;
  policy: string;
  goal: string;
  approach: string;
  call: Call;
  step: number;
  requested_at: string;
  expires_at: string;
  reasons: string[];
  memory: string;
  memory_results?: Partial<MemoryFindings> | null;
  diff: string;
  diff_ref: Blob | null;
}

export interface Resolution {
  approval_id: string;
  decision: string;
  text: string;
  approver: string;
  caller: string;
  at: string;
}

export interface PlanStep {
  tool: string;
  operation: string;
  params: Record<string, unknown>;
  why: string;
  on_failure: string;
  expect?: string;
}

export interface Plan {
  steps: PlanStep[];
  reasoning: string;
}

export interface Subtask {
  subtask_id: string;
  description: string;
  role: string;
  dependencies: string[];
  priority: number;
}

export interface SubtaskOutcome {
  subtask_id: string;
  execution_id: string;
  status: string;
  commit_sha: string;
  error: string;
}

export interface NodeUpdate {
  node_id: string;
  status: string;
  attempt: number;
  failures?: number;
  inputs: string;
  output: string;
  output_blob: Blob | null;
  error: string;
  execution_id: string;
  label: string;
  duration_ms: number;
}

export interface WorkflowNode {
  id: string;
  type: string;
  tool?: string;
  breakpoint?: boolean;
  node?: WorkflowNode | null;
  workflow?: string | { name: string };
}

export interface WorkflowDefinition {
  name: string;
  description?: string;
  nodes: WorkflowNode[];
  edges: { source: string; target: string; label?: string }[];
}

export interface Task {
  task_id: string;
  kind: string;
  description: string;
  role: string;
  repo?: { location?: string; ref?: string };
  constraints?: { requirements?: string[]; rubric?: string };
  num_agents?: number;
  rounds?: number;
  derive_subtasks?: boolean;
  parent_execution_id?: string;
  patches?: SubmittedPatch[];
  workflow?: { workflow: WorkflowDefinition; inputs: string } | null;
}

export interface SubmittedPatch {
  name: string;
}

export interface Delivered {
  commit_sha: string;
  branch: string;
  pushed: boolean;
  patch?: Blob | null;
  bundle?: Blob | null;
}

export interface Recollection {
  memory: { text: string; kind: string; namespace: string; source: string };
  score: number;
  found_by: string;
}

export interface GatheredContext {
  text: string;
  blocks: { kind: string; title: string; text: string; tokens: number }[];
  tokens: number;
  omitted: string[];
  recalled: Recollection[];
}

export const NOTHING_SPENT: Usage = {
  prompt_tokens: 0,
  completion_tokens: 0,
  cached_tokens: 0,
  model_calls: 0,
  tool_calls: 0,
  duration_ms: 0,
  cost: 0,
};

/** Both together. */
export function added(one: Usage, other: Partial<Usage> | undefined): Usage {
  if (!other) return one;
  return {
    prompt_tokens: one.prompt_tokens + (other.prompt_tokens ?? 0),
    completion_tokens: one.completion_tokens + (other.completion_tokens ?? 0),
    cached_tokens: one.cached_tokens + (other.cached_tokens ?? 0),
    model_calls: one.model_calls + (other.model_calls ?? 0),
    tool_calls: one.tool_calls + (other.tool_calls ?? 0),
    duration_ms: one.duration_ms + (other.duration_ms ?? 0),
    cost: one.cost + (other.cost ?? 0),
  };
}

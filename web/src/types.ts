// Messages of the services as the gateway's JSON has them; see the API reference for what each field means.

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  cached_tokens: number;
  model_calls: number;
  tool_calls: number;
  cost_usd: number;
  duration_ms: number;
}

export interface AgentProgress {
  agent_id: string;
  status: string;
  step: number;
  last_tool: string;
  usage?: Usage | null;
  stop_reason: string;
}

export interface ArtifactRef {
  digest: string;
  size_bytes: number;
  media_type: string;
  name: string;
  execution_id: string;
}

export interface Patch {
  /** Base64 of the diff as git wrote it. */
  text?: string;
  artifact?: ArtifactRef;
  files_changed: string[];
  lines_added: number;
  lines_removed: number;
  base_commit: string;
}

export interface ToolOperation {
  tool: string;
  operation: string;
  params?: Record<string, unknown> | null;
  success: boolean;
  output: string;
  error: string;
  exit_code?: number;
  duration_ms: number;
  started_at?: string | null;
  step: number;
  audit_seq: number;
  output_artifact?: ArtifactRef | null;
  call_id: string;
}

export interface PolicyResult {
  passed: boolean;
  violations: string[];
  message: string;
  duration_ms: number;
  skipped_reason: string;
}

export interface LintResult {
  passed: boolean;
  error_count: number;
  warning_count: number;
  errors: string[];
  duration_ms: number;
  skipped_reason: string;
}

export interface DryRunResult {
  passed: boolean;
  output: string;
  exit_code: number;
  message: string;
  duration_ms: number;
  skipped_reason: string;
}

export interface CheckResult {
  check_type: string;
  passed: boolean;
  score: number;
  message: string;
  details: Record<string, string>;
  duration_ms: number;
  skipped_reason: string;
}

export interface CheckSuite {
  policy?: PolicyResult | null;
  lint?: LintResult | null;
  dryrun?: DryRunResult | null;
  additional_checks: CheckResult[];
  all_passed: boolean;
  duration_ms: number;
  skipped_reason: string;
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
  round: number;
  verdict: string;
  score: number;
  content: string;
  findings: string[];
  created_at_ms: number;
  details: Finding[];
  usage?: Usage | null;
  error_message: string;
}

export interface Vote {
  judge_id: string;
  sample: number;
  order: string[];
  choice: string;
  reason: string;
  error_message: string;
}

export interface Proposal {
  author_id: string;
  author_role: string;
  content: string;
  created_at_ms: number;
  revisions: string[];
}

export interface TestSummary {
  passed: number;
  failed: number;
  errors: number;
  skipped: number;
  duration_ms: number;
  failing_tests: string[];
}

export interface Artifacts {
  commit_sha: string;
  branch: string;
  patch?: Patch | null;
  files_changed: string[];
  tests?: TestSummary | null;
}

export interface DeliberationResult {
  proposal?: Proposal | null;
  checks?: CheckSuite | null;
  score: number;
  rank: number;
  candidate_id: string;
  patch?: Patch | null;
  artifacts?: Artifacts | null;
  operations: ToolOperation[];
  critiques: Critique[];
  stop_reason: string;
  usage?: Usage | null;
  audit_head: string;
  duplicates: string[];
  reason: string;
  evidence_score: number;
  review_score?: number;
  vote_share?: number;
  votes: Vote[];
  revises: string;
  round: number;
  dropped_reason: string;
}

export interface PendingApproval {
  approval_id: string;
  agent_id: string;
  policy: string;
  proposal: string;
  operation?: ToolOperation | null;
  requested_at_ms: number;
  goal: string;
  memory: string;
  diff: string;
  whole_diff?: ArtifactRef | null;
  reasons: string[];
  expires_at_ms: number;
}

export interface AuditHead {
  agent_id: string;
  hash: string;
  signature: string;
}

export interface AtomicTask {
  task_id: string;
  role: string;
  description: string;
  dependencies: string[];
  case_id: string;
  plan_id: string;
  priority: number;
}

export interface SubtaskResult {
  task?: AtomicTask | null;
  execution_id: string;
  status: string;
  commit_sha: string;
  error_message: string;
}

export interface Execution {
  execution_id: string;
  task_id: string;
  kind: string;
  status: string;
  role: string;
  task_description: string;
  created_at_ms: number;
  updated_at_ms: number;
  finished_at_ms: number;
  agents: AgentProgress[];
  results: DeliberationResult[];
  winner_id: string;
  error_message: string;
  commit_sha: string;
  branch: string;
  audit_heads: AuditHead[];
  usage?: Usage | null;
  last_sequence: number;
  pending_approvals: PendingApproval[];
  subtasks: SubtaskResult[];
  parent_execution_id: string;
  attempt: number;
  priority: number;
  caller: string;
  owner: string;
  superseded: DeliberationResult[];
  agent_count: number;
  verdict: string;
  repository: string;
  title: string;
}

export interface ListExecutions {
  executions: Execution[];
  next_page_token: string;
}

export interface ExecutionEvent {
  sequence: number;
  event_id: string;
  agent_id: string;
  type: string;
  at_ms: number;
  payload: Record<string, unknown>;
}

export interface Memory {
  memory_id: string;
  namespace: string;
  text: string;
  kind: string;
  metadata: Record<string, string>;
  source: string;
  created_at_ms: number;
}

export interface Recollection {
  memory?: Memory | null;
  score: number;
  found_by: string;
}

/** Statuses that an execution does not leave. */
const ENDED = new Set(["COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "REJECTED", "NO_WINNER"]);

/** An enum's name without the enum's own: `DELIBERATION_STATUS_NO_WINNER` is `NO_WINNER`. */
export function bare(name: string | undefined): string {
  return (name ?? "").replace(
    /^(DELIBERATION_STATUS|AGENT_STATUS|EXECUTION_KIND|STOP_REASON|APPROVAL_POLICY|PLANNING_MODE|COMPONENT_STATE|EVIDENCE_VERDICT|VERDICT|ROLE|PHASE|TASK_STATE|DECISION_STATE|RELATION_KIND|MEMORY_KIND|REFERENCE_STANDING)_/,
    "",
  );
}

/** The same for people: `no winner`. */
export function words(name: string | undefined): string {
  return bare(name).toLowerCase().replaceAll("_", " ");
}

export function ended(status: string): boolean {
  return ENDED.has(bare(status));
}

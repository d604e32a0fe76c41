import { useEffect, useRef, useState } from "preact/hooks";
import { call, get, post, Problem } from "../api";
import { AdviceDialog, taken, type Recommendation } from "../submission/advice";
import { emptyForm, fieldName, repository, requestOf, wrongWith, type TaskForm } from "../submission/form";
import { AgentsPart, ChecksPart, LimitsPart, MemoryPart, RepositoryPart, TaskPart } from "../submission/sections";
import { begin } from "../plan/calls";
import { bare } from "../types";
import { navigate } from "../router";
import { Button, Checkbox, PageHead, ProblemBanner, TextField, toast } from "../ui";

const DRAFT = "fleet-task-draft";

function draft(): TaskForm {
  try {
    const kept = JSON.parse(sessionStorage.getItem(DRAFT) ?? "null") as Partial<TaskForm> | null;
    if (kept && typeof kept === "object") return { ...emptyForm(), ...kept };
  } catch {
    // A draft of another build, or a browser that keeps nothing.
  }
  return emptyForm();
}

function keep(form: TaskForm | undefined): void {
  try {
    if (form) sessionStorage.setItem(DRAFT, JSON.stringify(form));
    else sessionStorage.removeItem(DRAFT);
  } catch {
    // Then it lasts until the page is left.
  }
}

interface Submitted {
  execution_id: string;
  already_existed: boolean;
}

/** Hands in a task. */
export function SubmitView() {
  const [form, setForm] = useState(draft);
  const [bundle, setBundle] = useState<File>();
  const [busy, setBusy] = useState(false);
  const [asking, setAsking] = useState(false);
  const [problem, setProblem] = useState<unknown>();
  const [here, setHere] = useState<readonly [field: string, words: string]>();
  const [advice, setAdvice] = useState<Recommendation>();
  const [councils, setCouncils] = useState<ReadonlyMap<string, string>>(new Map());
  const [profiles, setProfiles] = useState<string[]>([]);
  const top = useRef<HTMLFormElement>(null);
  const more = useRef<HTMLDetailsElement>(null);

  useEffect(() => keep(form), [form]);
  useEffect(() => {
    const giveUp = new AbortController();
    // Names to choose from; without them any may be typed.
    get<{ model_endpoints?: { profiles: string[] }[] }>("/api/status", { include_fleet: true }, giveUp.signal)
      .then((status) => setProfiles([...new Set((status.model_endpoints ?? []).flatMap((one) => one.profiles))].sort()))
      .catch(() => undefined);
    get<{ councils: { council_id: string; role: string }[] }>("/api/councils", {}, giveUp.signal)
      .then((found) => setCouncils(new Map(found.councils.map((one) => [one.council_id, bare(one.role)]))))
      .catch(() => undefined);
    return () => giveUp.abort();
  }, []);

  const refused = here ?? (problem instanceof Problem && problem.field ? ([fieldName(problem.field), problem.message + (problem.hint ? ` (${problem.hint})` : "")] as const) : undefined);
  const set = (changes: Partial<TaskForm>): void => setForm((before) => ({ ...before, ...changes }));
  const wrong = (...fields: string[]): string | undefined => (refused && fields.includes(refused[0]) ? refused[1] : undefined);

  useEffect(() => {
    if (!refused) return;
    if (/^(constraints|delivery|task_id)/.test(refused[0]) && more.current) more.current.open = true;
    const at = top.current?.querySelector<HTMLElement>("[aria-invalid=true]") ?? top.current?.querySelector<HTMLElement>("[role=alert]");
    at?.focus();
    at?.scrollIntoView({ block: "center" });
  }, [here, problem]);

  async function go(event: Event): Promise<void> {
    event.preventDefault();
    if (busy) return;
    setProblem(undefined);
    const missing = wrongWith(form, bundle);
    setHere(missing);
    if (missing) return;
    setBusy(true);
    try {
      let repo = repository(form);
      if (form.repoKind === "bundle" && bundle) {
        const query = { ref: form.repoRef.trim(), subdirectory: form.repoSubdirectory.trim() };
        repo = await call<Record<string, unknown>>("POST", "/api/repositories", {
          query,
          bytes: { content: bundle, type: "application/x-git-bundle" },
        });
      }
      const answer = await post<Submitted>("/api/executions", requestOf(form, repo), { idempotencyKey: form.taskId });
      keep(undefined);
      if (answer.already_existed) toast("This task had been submitted before; here it is.");
      navigate(`/executions/${encodeURIComponent(answer.execution_id)}`);
    } catch (error) {
      setProblem(error);
      setBusy(false);
    }
  }

  async function recommend(): Promise<void> {
    if (!form.text.trim()) {
      setHere(["task_description", "Say what is to be done; the recommendation depends on it."]);
      return;
    }
    setAsking(true);
    setHere(undefined);
    setProblem(undefined);
    try {
      const body = {
        goal: form.text.trim().slice(0, 4000),
        role: `ROLE_${form.role}`,
        repository: form.repoKind === "url" ? form.repoUrl.trim() : form.repoKind === "path" ? form.repoPath.trim() : "",
        // Of another role a council does other work.
        councils: [...councils].filter(([, role]) => role === form.role).map(([id]) => id),
        model_profiles: profiles.slice(0, 50),
        approaches: ["deliberate", "orchestrate"],
      };
      setAdvice(await post<Recommendation>("/api/recommendations", body));
    } catch (error) {
      setProblem(error);
    } finally {
      setAsking(false);
    }
  }

  function plan(): void {
    navigate(`/plans/${begin(form.text.trim(), form.entities.map((one) => one.name))}`);
  }

  const parts = { form, set, wrong };
  return (
    <>
      <PageHead title="Submit a task" lead="Several agents solve it, each in its own clone; checks and reviews decide which proposal wins.">
        <Button
          kind="quiet"
          onClick={() => {
            setForm(emptyForm());
            setProblem(undefined);
            setHere(undefined);
          }}
        >
          Start over
        </Button>
      </PageHead>
      <form class="stack submit" ref={top} noValidate onSubmit={(event) => void go(event)}>
        <TaskPart {...parts} />
        <RepositoryPart {...parts} bundle={bundle} onBundle={setBundle} />
        <AgentsPart
          {...parts}
          profiles={profiles}
          aside={
            <Button small busy={asking} onClick={() => void recommend()}>
              Recommend
            </Button>
          }
        />
        <MemoryPart {...parts} />
        <ChecksPart {...parts} />
        <details class="card" ref={more}>
          <summary>Limits, delivery and the task's id</summary>
          <div class="stack details-body">
            <LimitsPart {...parts} />
            <div class="fields">
              {form.mode === "orchestrate" && (
                <TextField label="Branch of the result" value={form.branch} onInput={(branch) => set({ branch })} error={wrong("delivery.branch")} placeholder="fleet/<task id>" />
              )}
              <TextField
                label="Task id"
                value={form.taskId}
                onInput={(taskId) => set({ taskId })}
                error={wrong("task_id")}
                hint="The same id with the same content is the same task, however often it is sent."
              />
            </div>
            {form.mode === "orchestrate" && (
              <Checkbox label="Push the branch to where the repository came from" checked={form.push} onChange={(push) => set({ push })} />
            )}
          </div>
        </details>
        <ProblemBanner problem={problem} />
        <div class="submit-actions">
          <Button kind="primary" type="submit" busy={busy}>
            Submit
          </Button>
          <Button disabled={!form.text.trim()} onClick={plan} title="Memory is searched, an approach is proposed, and nothing runs before you decide.">
            Plan with approval
          </Button>
        </div>
      </form>
      {advice && <AdviceDialog said={advice} councils={councils} onClose={() => setAdvice(undefined)} onTake={(said) => set(taken(said, councils))} />}
    </>
  );
}

import { useEffect, useRef, useState } from "preact/hooks";
import { call, get, post, Problem } from "../api";
import { sentenceOf, taken, type Recommendation } from "../submission/advice";
import { emptyForm, fieldName, formAgain, repository, requestOf, wrongWith, type Again, type TaskForm } from "../submission/form";
import { AgentsPart, ChecksPart, LimitsPart, MemoryPart, RepositoryPart, TaskPart } from "../submission/sections";
import { begin } from "../plan/calls";
import { bare, type ListExecutions } from "../types";
import { navigate, place, setQuery } from "../router";
import { Button, Checkbox, PageHead, ProblemBanner, TextField, toast } from "../ui";
import { visible } from "../visible";

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
  const [recent, setRecent] = useState<string[]>([]);
  const top = useRef<HTMLFormElement>(null);
  const again = place.value.query.get("again");

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
    get<ListExecutions>("/api/executions", { page_size: 100 }, giveUp.signal)
      .then((found) => setRecent([...new Set(found.executions.map((one) => one.repository))].filter((one) => one && !one.startsWith("upload:")).slice(0, 20)))
      .catch(() => undefined);
    return () => giveUp.abort();
  }, []);

  useEffect(() => {
    if (!again) return;
    const giveUp = new AbortController();
    get<{ execution: Again }>(`/api/executions/${encodeURIComponent(again)}`, {}, giveUp.signal).then(
      ({ execution }) => {
        setForm(formAgain(execution));
        setQuery({ again: undefined });
      },
      (error: unknown) => giveUp.signal.aborted || setProblem(error),
    );
    return () => giveUp.abort();
  }, [again]);

  const refused = here ?? (problem instanceof Problem && problem.field ? ([fieldName(problem.field), problem.message + (problem.hint ? ` (${problem.hint})` : "")] as const) : undefined);
  const set = (changes: Partial<TaskForm>): void => setForm((before) => ({ ...before, ...changes }));
  const wrong = (...fields: string[]): string | undefined => (refused && fields.includes(refused[0]) ? refused[1] : undefined);

  useEffect(() => {
    if (!refused) return;
    const at = top.current?.querySelector<HTMLElement>("[aria-invalid=true]") ?? top.current?.querySelector<HTMLElement>("[role=alert]");
    const folded = at?.closest("details");
    if (folded) folded.open = true;
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
      if (form.bundle && bundle) {
        const query = { ref: form.repoRef.trim(), subdirectory: form.repoSubdirectory.trim() };
        repo = await call<Record<string, unknown>>("POST", "/api/repositories", {
          query,
          bytes: { content: bundle, type: "application/x-git-bundle" },
        });
      }
      const answer = await post<Submitted>("/api/executions", requestOf(form, repo));
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
        repository: form.bundle ? "" : form.repo.trim(),
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
        <TaskPart
          {...parts}
          recent={recent}
          aside={
            <div class="submit-actions">
              <Button kind="primary" type="submit" busy={busy}>
                Submit
              </Button>
              <Button busy={asking} onClick={() => void recommend()}>
                Recommend
              </Button>
              <Button disabled={!form.text.trim()} onClick={plan} title="Memory is searched, an approach is proposed, and nothing runs before you decide.">
                Plan with approval
              </Button>
            </div>
          }
        />
        {advice && <Advised said={advice} councils={councils} onTake={() => set(taken(advice, councils))} />}
        <ProblemBanner problem={problem} />
        <details class="more">
          <summary>More options: repository, agents, memory, checks, limits, delivery</summary>
          <div class="stack details-body">
            <RepositoryPart {...parts} bundle={bundle} onBundle={setBundle} />
            <AgentsPart {...parts} profiles={profiles} />
            <MemoryPart {...parts} />
            <ChecksPart {...parts} />
            <section class="card stack" aria-label="Limits and delivery">
              <h2>Limits and delivery</h2>
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
            </section>
          </div>
        </details>
      </form>
    </>
  );
}

interface AdviceProps {
  said: Recommendation;
  /** The roles of the councils there are, by the councils' ids. */
  councils: ReadonlyMap<string, string>;
  onTake: () => void;
}

/** What experience recommends for the task. */
function Advised({ said, councils, onTake }: AdviceProps) {
  return (
    <div class="banner banner-calm" role="status">
      <p class="banner-words">{visible(sentenceOf(said, councils))}</p>
      {said.outcomes > 0 && (
        <Button small onClick={onTake}>
          Use it
        </Button>
      )}
    </div>
  );
}

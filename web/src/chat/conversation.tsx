import { useEffect, useRef, useState } from "preact/hooks";
import { aborted } from "../api";
import { randomName } from "../names";
import { navigate } from "../router";
import { lines } from "../submission/form";
import { Button, Empty, Loading, Markdown, ProblemBanner, TextArea, useLoad } from "../ui";
import { TurnView } from "./answer";
import { ask, conversation, stop, type Answer, type Message, type ToolStep, type Turn } from "./sending";

function turnOf(message: Message, answer: Answer): Turn {
  return {
    number: answer.turn,
    text: message.text,
    answer: answer.text,
    answered_at_ms: Date.now(),
    tools: answer.tools,
    success: answer.success,
    stop_reason: answer.stop_reason,
    execution_id: answer.execution_id,
    tables: answer.tables,
    references: answer.references,
  };
}

const SIGNS = { running: "…", done: "✓", failed: "✕" } as const;

/** A chat: its turns, what is on its way, and where the next message is written. */
export function ConversationView({ session, fresh, onAnswered }: { session: string; fresh: boolean; onAnswered: () => void }) {
  const kept = useLoad((signal) => (fresh ? Promise.resolve(undefined) : conversation(session, signal)), session);
  const [added, setAdded] = useState<readonly Turn[]>([]);
  const [answers, setAnswers] = useState<ReadonlyMap<number, Answer>>(new Map());
  const [text, setText] = useState("");
  const [memory, setMemory] = useState<string>();
  const [sending, setSending] = useState<Message>();
  const [failed, setFailed] = useState<Message>();
  const [problem, setProblem] = useState<unknown>();
  const [steps, setSteps] = useState<readonly ToolStep[]>([]);
  const [draft, setDraft] = useState("");
  const asking = useRef<AbortController>(undefined);
  const end = useRef<HTMLDivElement>(null);
  useEffect(() => () => asking.current?.abort(), []);

  const known = kept.value?.turns ?? [];
  const turns = [...known, ...added.filter((turn) => !known.some((one) => one.number === turn.number))];
  const last = turns.at(-1);
  const lastAnswer = last && answers.get(last.number);
  const proposed = sending ? false : (lastAnswer?.task_proposed ?? (added.length === 0 && kept.value?.task_proposed === true));
  const namespaces = memory ?? (kept.value?.memory_namespaces ?? []).join("\n");

  useEffect(() => {
    if (turns.length || sending) end.current?.scrollIntoView({ block: "end" });
  }, [turns.length, sending]);

  async function submit(message: Message): Promise<void> {
    if (sending || !message.text.trim()) return;
    const mine = new AbortController();
    asking.current = mine;
    setSending(message);
    setFailed(undefined);
    setProblem(undefined);
    setSteps([]);
    setDraft("");
    setText("");
    navigate(`/chat/${encodeURIComponent(session)}`, { replace: true, keepFocus: true });
    try {
      const request = { session, message, seenTurn: last?.number ?? 0, namespaces: lines(namespaces) };
      const answer = await ask(request, { onTools: setSteps, onText: setDraft }, mine.signal);
      setAdded((before) => [...before, turnOf(message, answer)]);
      setAnswers((before) => new Map(before).set(answer.turn, answer));
      onAnswered();
    } catch (error) {
      if (mine.signal.aborted && !aborted(error)) return;
      if (aborted(error)) setText(message.text);
      else {
        setFailed(message);
        setProblem(error);
      }
    } finally {
      setSending(undefined);
    }
  }

  function write(): void {
    void submit({ text: text.trim(), id: randomName("m") });
  }

  const empty = !turns.length && !sending && !kept.loading && !kept.problem;
  return (
    <section class="chat" aria-label="Conversation">
      <div class="chat-turns">
        {kept.loading && !kept.value && !added.length && !sending && <Loading what="Opening the chat" />}
        <ProblemBanner problem={kept.problem} retry={kept.reload} />
        {empty && (
          <Empty title="Ask about repositories, executions and memories.">
            <p>A task that is proposed here starts only after your yes.</p>
          </Empty>
        )}
        <div role="log" aria-label="Messages" class="stack">
          {turns.map((turn) => (
            <TurnView key={turn.number} turn={turn} />
          ))}
        </div>
        {sending && (
          <article class="turn" aria-label="On its way">
            <div class="said said-person">
              <p class="prose-text">{sending.text}</p>
            </div>
            <div class="said said-fleet">
              <ul class="list-plain steps-list" role="status">
                {steps.map((step, index) => (
                  <li key={index} class="small muted">
                    <span aria-hidden="true">{SIGNS[step.state]}</span> {step.tool}
                    <span class="sr-only"> {step.state}</span>
                  </li>
                ))}
                {!draft && <li class="muted">Working …</li>}
              </ul>
              {draft && (
                <div aria-hidden="true">
                  <Markdown text={draft} />
                </div>
              )}
              <Button small onClick={() => void stop(session).catch(setProblem)}>
                Stop
              </Button>
            </div>
          </article>
        )}
        {failed && (
          <div class="stack-tight">
            <div class="said said-person">
              <p class="prose-text">{failed.text}</p>
            </div>
            <ProblemBanner problem={problem} retry={() => void submit(failed)} />
          </div>
        )}
        {proposed && (
          <div class="banner banner-warn" role="group" aria-label="A task waits for your yes">
            <div class="banner-words">
              <strong>A task waits for your yes.</strong> Nothing has been started.
            </div>
            <div class="row">
              <Button kind="primary" onClick={() => void submit({ text: "yes", id: randomName("m") })}>
                Yes, start it
              </Button>
              <Button onClick={() => void submit({ text: "no", id: randomName("m") })}>No</Button>
            </div>
          </div>
        )}
        <div ref={end} />
      </div>
      <form
        class="composer"
        onSubmit={(event) => {
          event.preventDefault();
          write();
        }}
      >
        <TextArea
          label="Message"
          rows={3}
          value={text}
          onInput={setText}
          hint="Enter sends, Shift and Enter begin a new line."
          onKeyDown={(event) => {
            if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
            event.preventDefault();
            write();
          }}
        />
        <div class="row-spread">
          <details class="composer-memory">
            <summary class="small">Memory</summary>
            <TextArea
              label="Namespaces, one a line"
              mono
              rows={2}
              value={namespaces}
              onInput={setMemory}
              hint="Where the chat remembers and is reminded: fleet, agent:<id>, repository:<name>. The first is where it keeps what it is asked to."
            />
          </details>
          <Button kind="primary" type="submit" disabled={!text.trim()} busy={Boolean(sending)}>
            Send
          </Button>
        </div>
      </form>
    </section>
  );
}

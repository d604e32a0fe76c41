/** How good the outcome was, as a person sees it, and why; recommendations learn from it. */

import { useState } from "preact/hooks";
import { get, post, Problem } from "../api";
import { visible } from "../visible";
import { Button, ProblemBanner, TextArea, useLoad } from "../ui";

const WORDS = ["useless", "poor", "usable", "good", "as it should be"];
const MOST = 2_000;
/** An outcome is recorded a moment after its execution has ended. */
const TRIES = 8;
const PAUSE_MS = 1_000;

interface Rated {
  rating: number;
  rated_by: string;
  comment: string;
}

type Answer = { outcome: Rated | null };

export function RatingCard({ subject }: { subject: string }) {
  const earlier = useLoad((signal) => ratingOf(subject, signal), subject);
  const [mine, setMine] = useState<Rated>();
  const [draft, setDraft] = useState<string>();
  const [busy, setBusy] = useState("");
  const [problem, setProblem] = useState<unknown>();
  const rated = mine ?? earlier.value;
  const rating = rated?.rating ?? 0;
  const comment = rated?.comment ?? "";
  const text = draft ?? comment;
  async function rate(value: number, what: string): Promise<void> {
    // Of two at once, nobody knows which one stands.
    if (busy || text.trim().length > MOST) return;
    setBusy(what);
    setProblem(undefined);
    try {
      const answer = await recorded({
        subject_id: subject,
        rating: value,
        ...(text.trim() !== comment && { comment: text.trim() }),
      });
      setMine(answer.outcome ?? undefined);
      setDraft(undefined);
    } catch (error) {
      setProblem(error);
    }
    setBusy("");
  }
  return (
    <div class="rating" role="group" aria-label="How good was the outcome?">
      <span class="rating-question">How good was the outcome?</span>
      <span class="row">
        {WORDS.map((word, at) => (
          <Button
            key={word}
            small
            pressed={rating === at + 1}
            busy={busy === word}
            title={word}
            label={`${at + 1} of 5: ${word}`}
            onClick={() => void rate(at + 1, word)}
          >
            {at + 1}
          </Button>
        ))}
      </span>
      <span class="muted small" role="status">
        {rating
          ? `Rated ${rating} of 5: ${WORDS[rating - 1] ?? ""}${rated?.rated_by ? `, by ${visible(rated.rated_by)}` : ""}.`
          : "1 is useless, 5 is as it should be."}
      </span>
      {rating > 0 && (
        <div class="rating-words">
          <TextArea
            label="Why (optional)"
            rows={2}
            value={text}
            onInput={setDraft}
            error={text.trim().length > MOST ? `At most ${MOST} characters; these are ${text.trim().length}.` : undefined}
          />
          {text.trim() !== comment && (
            <Button small busy={busy === "words"} onClick={() => void rate(rating, "words")}>
              Save the comment
            </Button>
          )}
        </div>
      )}
      <ProblemBanner problem={problem ?? (earlier.value ? undefined : earlier.problem)} />
    </div>
  );
}

async function recorded(rating: Record<string, unknown>): Promise<Answer> {
  for (let left = TRIES; ; left -= 1) {
    try {
      return await post<Answer>("/api/outcomes", { rating });
    } catch (error) {
      if (!(error instanceof Problem && error.status === 404) || left <= 1) throw error;
      await new Promise((done) => setTimeout(done, PAUSE_MS));
    }
  }
}

/** What people said of it so far; nothing where it is not recorded yet. */
async function ratingOf(subject: string, signal: AbortSignal): Promise<Rated | undefined> {
  try {
    return (await get<Answer>(`/api/outcomes/${encodeURIComponent(subject)}`, {}, signal)).outcome ?? undefined;
  } catch (error) {
    if (error instanceof Problem && error.status === 404) return undefined;
    throw error;
  }
}

/** How good the outcome was, as a person sees it; recommendations learn from it. */

import { useState } from "preact/hooks";
import { post } from "../api";
import { Button, ProblemBanner } from "../ui";

const WORDS = ["useless", "poor", "usable", "good", "as it should be"];

export function RatingCard({ subject }: { subject: string }) {
  const [rating, setRating] = useState(0);
  const [busy, setBusy] = useState(0);
  const [problem, setProblem] = useState<unknown>();
  async function rate(value: number): Promise<void> {
    setBusy(value);
    setProblem(undefined);
    try {
      const answer = await post<{ outcome: { rating: number } | null }>("/api/outcomes", {
        rating: { subject_id: subject, rating: value },
      });
      setRating(answer.outcome?.rating ?? value);
    } catch (error) {
      setProblem(error);
    }
    setBusy(0);
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
            busy={busy === at + 1}
            title={word}
            label={`${at + 1} of 5: ${word}`}
            onClick={() => void rate(at + 1)}
          >
            {at + 1}
          </Button>
        ))}
      </span>
      <span class="muted small" role="status">
        {rating ? `Rated ${rating} of 5: ${WORDS[rating - 1]}.` : "1 is useless, 5 is as it should be."}
      </span>
      <ProblemBanner problem={problem} />
    </div>
  );
}

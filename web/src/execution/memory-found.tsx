/** What searching memory gave: how much of what was asked for is known, what is not, and from where. */

import { visible } from "../visible";
import { Fold, LongText } from "./fold";

export interface Found {
  /** In percent; absent: nobody said. */
  coverage?: number | undefined;
  gaps: string[];
  sources: string[];
  content: string;
}

const COVERAGE = /^Coverage(?: of the gaps)?: (\d{1,3}(?:\.\d+)?) %\.?$/;

/** Reads the text that searching gives to agents; what is not of its form is content. */
export function readMemory(text: string): Found {
  const found: Found = { gaps: [], sources: [], content: "" };
  const rest: string[] = [];
  for (const line of text.split("\n")) {
    const coverage = COVERAGE.exec(line.trim());
    if (coverage && found.coverage === undefined) found.coverage = Number(coverage[1]);
    else if (line.startsWith("Gaps: ")) found.gaps.push(...line.slice(6).split("; ").filter(Boolean));
    else if (line.startsWith("Source: ")) found.sources.push(line.slice(8));
    else rest.push(line);
  }
  found.content = rest.join("\n").trim();
  return found;
}

export function MemoryFound({ found, title = "Memory" }: { found: Found; title?: string }) {
  const coverage = found.coverage === undefined ? undefined : Math.max(0, Math.min(100, found.coverage));
  return (
    <div class="memory-found stack-tight">
      <div class="row-spread">
        <h4>{title}</h4>
        {coverage !== undefined && <span class="small">{coverage.toFixed(0)} % of what was asked for is known</span>}
      </div>
      {coverage !== undefined && (
        <progress class="coverage" max={100} value={coverage} aria-label={`${title}: coverage`} />
      )}
      {found.gaps.length > 0 && (
        <div>
          <span class="muted small">Not known:</span>
          <ul class="gaps">
            {found.gaps.slice(0, 50).map((gap) => (
              <li key={gap}>{visible(gap)}</li>
            ))}
          </ul>
        </div>
      )}
      {found.content && <Fold head="What was found" body={() => <LongText text={found.content} />} />}
      {found.sources.length > 0 && (
        <div>
          <span class="muted small">Sources:</span>
          <ul class="sources">
            {found.sources.slice(0, 50).map((source) => (
              <li key={source}>{visible(source)}</li>
            ))}
          </ul>
        </div>
      )}
    </div>
  );
}

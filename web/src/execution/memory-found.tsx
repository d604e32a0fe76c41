/** What searching memory gave: how much of what was asked for is known, what is not, and from where. */

import { visible } from "../visible";
import { Fold, LongText } from "./fold";
import type { Found } from "./memory";

export function MemoryFound({ found, title = "Memory" }: { found: Found; title?: string }) {
  const coverage = found.coverage === undefined ? undefined : Math.max(0, Math.min(100, found.coverage));
  return (
    <div class="memory-found stack-tight">
      <div class="row-spread">
        <h4>{title}</h4>
        {coverage !== undefined && <span class="small">{Math.floor(coverage)} % of what was asked for is known</span>}
      </div>
      {coverage !== undefined && (
        <progress class="coverage" max={100} value={coverage} aria-label={`${title}: coverage`} />
      )}
      {found.gaps.length > 0 && (
        <div>
          <span class="muted small">Not known:</span>
          <ul class="gaps">
            {found.gaps.slice(0, 50).map((gap, at) => (
              <li key={at}>{visible(gap)}</li>
            ))}
          </ul>
        </div>
      )}
      {found.content && <Fold head="What was found" body={() => <LongText text={found.content} />} />}
      {found.sources.length > 0 && (
        <div>
          <span class="muted small">Sources:</span>
          <ul class="sources">
            {found.sources.slice(0, 50).map((source, at) => (
              <li key={at}>{visible(source)}</li>
            ))}
          </ul>
        </div>
      )}
    </div>
  );
}

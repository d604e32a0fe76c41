/** What searching memory gave an agent, in parts. */

import type { ApprovalRequest } from "./events";

export interface Found {
  /** In percent; absent: nobody said. */
  coverage?: number | undefined;
  gaps: string[];
  sources: string[];
  content: string;
}

const COVERAGE = /^Coverage(?: of the gaps)?: (\d{1,3}(?:\.\d+)?) %\.?$/;

/** What a request for approval knows of memory; nothing where memory was not asked. */
export function memoryOf(request: ApprovalRequest): Found | undefined {
  const parts = request.memory_results;
  if (parts)
    return {
      coverage: parts.coverage,
      gaps: parts.gaps ?? [],
      sources: parts.sources ?? [],
      content: parts.content ?? "",
    };
  // Older logs have it in words only.
  return request.memory ? readMemory(request.memory) : undefined;
}

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

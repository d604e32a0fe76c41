/** The whole of an output that was cut. */

import { useState } from "preact/hooks";
import { Button, ProblemBanner, size } from "../ui";
import { artifactPath, artifactText, fileName, SHOWN_BYTES } from "./artifact";
import { LongText } from "./fold";

export function Whole({ id, digest, name }: { id: string; digest: string; name: string }) {
  const [state, setState] = useState<{ text?: string; whole?: boolean; busy?: boolean; problem?: unknown }>({});
  async function load(): Promise<void> {
    setState({ busy: true });
    try {
      setState(await artifactText(id, digest));
    } catch (problem) {
      setState({ problem });
    }
  }
  return (
    <div class="stack-tight">
      {state.text === undefined ? (
        <div class="row">
          <Button small busy={state.busy ?? false} onClick={() => void load()}>
            Whole output
          </Button>
          <a href={artifactPath(id, digest)} download={fileName(name)}>
            Download
          </a>
        </div>
      ) : (
        <>
          <LongText text={state.text} most={20_000} mono />
          {!state.whole && (
            <p class="muted small">
              The first {size(SHOWN_BYTES)}. <a href={artifactPath(id, digest)} download={fileName(name)}>Download all of it</a>
            </p>
          )}
        </>
      )}
      <ProblemBanner problem={state.problem} retry={() => void load()} />
    </div>
  );
}

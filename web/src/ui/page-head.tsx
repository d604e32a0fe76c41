import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";

/** A view's heading, which is also the window's title, with what can be done there. */
export function PageHead({ title, children, lead }: { title: string; children?: ComponentChildren; lead?: ComponentChildren }) {
  useEffect(() => {
    document.title = `${title} · SWE AI Fleet`;
  }, [title]);
  return (
    <div class="page-head">
      <div class="page-head-words">
        <h1>{title}</h1>
        {lead && <p class="lead">{lead}</p>}
      </div>
      {children && <div class="page-head-actions">{children}</div>}
    </div>
  );
}

import type { ComponentChildren } from "preact";
import { useId, useRef } from "preact/hooks";

export interface Tab {
  readonly id: string;
  readonly title: ComponentChildren;
  readonly body: () => ComponentChildren;
}

/** Tabs as the ARIA pattern has them: arrows, Home and End move between them. */
export function Tabs({ label, tabs, chosen, onChoose }: { label: string; tabs: readonly Tab[]; chosen: string; onChoose: (id: string) => void }) {
  const base = useId();
  const list = useRef<HTMLDivElement>(null);
  const at = Math.max(0, tabs.findIndex((tab) => tab.id === chosen));
  const current = tabs[at];

  function move(event: KeyboardEvent): void {
    const steps: Record<string, number> = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 };
    const to = steps[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const index = (to + tabs.length) % tabs.length;
    const tab = tabs[index];
    if (!tab) return;
    onChoose(tab.id);
    list.current?.querySelectorAll<HTMLButtonElement>("[role=tab]")[index]?.focus();
  }

  return (
    <div class="tabs">
      <div class="tab-list" role="tablist" aria-label={label} ref={list} onKeyDown={move}>
        {tabs.map((tab, index) => (
          <button
            key={tab.id}
            type="button"
            role="tab"
            class="tab"
            id={`${base}-tab-${tab.id}`}
            aria-selected={index === at}
            aria-controls={`${base}-panel`}
            tabIndex={index === at ? 0 : -1}
            onClick={() => onChoose(tab.id)}
          >
            {tab.title}
          </button>
        ))}
      </div>
      {current && (
        <div class="tab-panel" role="tabpanel" id={`${base}-panel`} aria-labelledby={`${base}-tab-${current.id}`} tabIndex={0} key={current.id}>
          {current.body()}
        </div>
      )}
    </div>
  );
}

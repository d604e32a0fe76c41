import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { Button } from "./button";
import { ProblemBanner } from "./feedback";

interface DialogProps {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
  actions?: ComponentChildren;
  wide?: boolean;
}

/** The browser's own modal dialogue: focus stays in it, Escape closes it, and focus goes back after. */
export function Dialog({ title, onClose, children, actions, wide }: DialogProps) {
  const box = useRef<HTMLDialogElement>(null);
  const heading = useId();
  useEffect(() => {
    const before = document.activeElement;
    const dialog = box.current;
    dialog?.showModal();
    return () => {
      dialog?.close();
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  return (
    <dialog
      ref={box}
      class={`dialog${wide ? " dialog-wide" : ""}`}
      aria-labelledby={heading}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onClick={(event) => {
        if (event.target === box.current) onClose();
      }}
    >
      <div class="dialog-inner">
        <header class="dialog-head">
          <h2 id={heading}>{title}</h2>
          <Button kind="quiet" small label="Close" onClick={onClose}>
            <span aria-hidden="true">✕</span>
          </Button>
        </header>
        <div class="dialog-body">{children}</div>
        {actions && <footer class="dialog-actions">{actions}</footer>}
      </div>
    </dialog>
  );
}

interface ConfirmProps {
  title: string;
  yes: string;
  no?: string;
  danger?: boolean;
  onYes: () => Promise<void>;
  onClose: () => void;
  children: ComponentChildren;
}

/** Asks before something that cannot be taken back; stays open with the problem where it fails. */
export function Confirm({ title, yes, no = "Keep", danger = true, onYes, onClose, children }: ConfirmProps) {
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<unknown>();
  async function go(): Promise<void> {
    setBusy(true);
    setProblem(undefined);
    try {
      await onYes();
      onClose();
    } catch (error) {
      setProblem(error);
      setBusy(false);
    }
  }
  return (
    <Dialog
      title={title}
      onClose={onClose}
      actions={
        <>
          <Button onClick={onClose}>{no}</Button>
          <Button kind={danger ? "danger" : "primary"} busy={busy} onClick={() => void go()}>
            {yes}
          </Button>
        </>
      }
    >
      {children}
      <ProblemBanner problem={problem} />
    </Dialog>
  );
}

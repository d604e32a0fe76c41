import type { ComponentChildren, TargetedMouseEvent } from "preact";

type Kind = "plain" | "primary" | "danger" | "quiet";

export interface ButtonProps {
  children: ComponentChildren;
  kind?: Kind;
  small?: boolean;
  busy?: boolean;
  disabled?: boolean;
  type?: "button" | "submit";
  onClick?: (event: TargetedMouseEvent<HTMLButtonElement>) => void;
  label?: string;
  title?: string;
  pressed?: boolean;
  expanded?: boolean;
  controls?: string;
  class?: string;
}

/** A button; busy ones say so and take no second click. */
export function Button(props: ButtonProps) {
  const { children, kind = "plain", small, busy, disabled, type = "button", onClick } = props;
  return (
    <button
      type={type}
      class={`button button-${kind}${small ? " button-small" : ""}${props.class ? ` ${props.class}` : ""}`}
      disabled={disabled}
      aria-disabled={busy ? "true" : undefined}
      aria-busy={busy ? "true" : undefined}
      aria-label={props.label}
      aria-pressed={props.pressed === undefined ? undefined : props.pressed}
      aria-expanded={props.expanded === undefined ? undefined : props.expanded}
      aria-controls={props.controls}
      title={props.title}
      onClick={(event) => {
        if (busy) {
          event.preventDefault();
          return;
        }
        onClick?.(event);
      }}
    >
      {busy && <span class="spinner" aria-hidden="true" />}
      {children}
    </button>
  );
}

import type { ComponentChildren, KeyboardEventHandler } from "preact";
import { useId } from "preact/hooks";

interface FieldProps {
  label: string;
  hint?: ComponentChildren;
  error?: string | undefined;
  children: (ids: { id: string; describedBy: string | undefined; invalid: boolean }) => ComponentChildren;
  wide?: boolean;
}

/** A control with its label, its hint, and what is wrong with what it holds. */
export function Field({ label, hint, error, children, wide }: FieldProps) {
  const id = useId();
  const described = [hint ? `${id}-hint` : "", error ? `${id}-error` : ""].filter(Boolean).join(" ");
  return (
    <div class={`field${wide ? " field-wide" : ""}${error ? " field-wrong" : ""}`}>
      <label for={id}>{label}</label>
      {children({ id, describedBy: described || undefined, invalid: Boolean(error) })}
      {hint && (
        <p class="hint" id={`${id}-hint`}>
          {hint}
        </p>
      )}
      {error && (
        <p class="field-error" id={`${id}-error`}>
          {error}
        </p>
      )}
    </div>
  );
}

interface ControlProps {
  label: string;
  value: string;
  onInput: (value: string) => void;
  hint?: ComponentChildren;
  error?: string | undefined;
  wide?: boolean;
  placeholder?: string;
  required?: boolean;
  name?: string;
  autoFocus?: boolean;
}

interface TextProps extends ControlProps {
  type?: "text" | "password" | "search" | "number" | "url" | "datetime-local";
  min?: number;
  max?: number;
  step?: number | "any";
  list?: string[];
  autocomplete?: string;
}

/** One line of text. */
export function TextField({ label, value, onInput, hint, error, wide, list, ...rest }: TextProps) {
  return (
    <Field label={label} hint={hint} error={error} {...(wide && { wide })}>
      {({ id, describedBy, invalid }) => (
        <>
          <input
            id={id}
            class="input"
            type={(rest.type ?? "text") as "text"}
            name={rest.name}
            value={value}
            placeholder={rest.placeholder}
            required={rest.required}
            min={rest.min}
            max={rest.max}
            step={rest.step}
            autocomplete={(rest.autocomplete ?? "off") as "off"}
            spellcheck={false}
            list={list ? `${id}-list` : undefined}
            aria-describedby={describedBy}
            aria-invalid={invalid || undefined}
            autofocus={rest.autoFocus}
            onInput={(event) => onInput(event.currentTarget.value)}
          />
          {list && (
            <datalist id={`${id}-list`}>
              {list.map((one) => (
                <option key={one} value={one} />
              ))}
            </datalist>
          )}
        </>
      )}
    </Field>
  );
}

/** Several lines of text. */
export function TextArea(props: ControlProps & { rows?: number; mono?: boolean; onKeyDown?: KeyboardEventHandler<HTMLTextAreaElement> }) {
  const { label, value, onInput, hint, error, wide, rows = 4 } = props;
  return (
    <Field label={label} hint={hint} error={error} {...(wide && { wide })}>
      {({ id, describedBy, invalid }) => (
        <textarea
          id={id}
          class={`input${props.mono ? " mono" : ""}`}
          name={props.name}
          rows={rows}
          value={value}
          placeholder={props.placeholder}
          required={props.required}
          aria-describedby={describedBy}
          aria-invalid={invalid || undefined}
          autofocus={props.autoFocus}
          onInput={(event) => onInput(event.currentTarget.value)}
          onKeyDown={props.onKeyDown}
        />
      )}
    </Field>
  );
}

/** One of several. */
export function Select(props: ControlProps & { options: readonly (readonly [value: string, text: string])[] }) {
  const { label, value, onInput, hint, error, wide, options } = props;
  return (
    <Field label={label} hint={hint} error={error} {...(wide && { wide })}>
      {({ id, describedBy, invalid }) => (
        <select
          id={id}
          class="input"
          name={props.name}
          value={value}
          aria-describedby={describedBy}
          aria-invalid={invalid || undefined}
          onChange={(event) => onInput(event.currentTarget.value)}
        >
          {options.map(([one, text]) => (
            <option key={one} value={one}>
              {text}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}

/** Yes or no. */
export function Checkbox({ label, checked, onChange, hint }: { label: string; checked: boolean; onChange: (checked: boolean) => void; hint?: string }) {
  const id = useId();
  return (
    <div class="checkbox">
      <input
        id={id}
        type="checkbox"
        checked={checked}
        aria-describedby={hint ? `${id}-hint` : undefined}
        onChange={(event) => onChange(event.currentTarget.checked)}
      />
      <label for={id}>{label}</label>
      {hint && (
        <p class="hint" id={`${id}-hint`}>
          {hint}
        </p>
      )}
    </div>
  );
}

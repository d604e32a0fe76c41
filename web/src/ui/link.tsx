import type { ComponentChildren } from "preact";
import { navigate } from "../router";

interface LinkProps {
  href: string;
  children?: ComponentChildren;
  class?: string | undefined;
  title?: string | undefined;
  "aria-label"?: string | undefined;
  "aria-current"?: "page" | "true" | undefined;
}

/** A link within the page: a plain click stays in it, all others are the browser's. */
export function Link({ href, children, ...rest }: LinkProps) {
  return (
    <a
      {...rest}
      href={href}
      onClick={(event) => {
        if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
        event.preventDefault();
        navigate(href);
      }}
    >
      {children}
    </a>
  );
}

/** A link elsewhere, made only of http and https addresses; anything else stays text. */
export function OutLink({ href, children }: { href: string; children?: ComponentChildren }) {
  if (!/^https?:\/\/[^\s]+$/i.test(href)) return <>{children ?? href}</>;
  return (
    <a href={href} target="_blank" rel="noopener noreferrer nofollow">
      {children ?? href}
    </a>
  );
}

import type { ComponentChildren } from "preact";
import { useErrorBoundary } from "preact/hooks";
import { ExecutionPage } from "./execution";
import { PlanPage } from "./plan";
import { match, place } from "./router";
import { standing } from "./session";
import { Shell } from "./shell";
import { Button, Empty, Link, Loading, PageHead, Toasts } from "./ui";
import { BatchesView } from "./views/batches";
import { ChatView } from "./views/chat";
import { ConnectView } from "./views/connect";
import { CouncilsView } from "./views/councils";
import { ExecutionsView } from "./views/executions";
import { FleetView } from "./views/fleet";
import { LoginView } from "./views/login";
import { MemoryView } from "./views/memory";
import { StoriesView } from "./views/stories";
import { SubmitView } from "./views/submit";
import { WebhooksView } from "./views/webhooks";
import { WorkflowsPage } from "./workflows";

type View = (parts: Record<string, string>) => ComponentChildren;

const VIEWS: readonly (readonly [pattern: string, view: View])[] = [
  ["/", () => <ExecutionsView />],
  ["/executions", () => <ExecutionsView />],
  ["/executions/:id", ({ id }) => <ExecutionPage key={id} id={id ?? ""} />],
  ["/batch", () => <BatchesView />],
  ["/submit", () => <SubmitView />],
  ["/chat", () => <ChatView />],
  ["/chat/:id", ({ id }) => <ChatView session={id ?? ""} />],
  ["/plans", () => <PlanPage key="plans" />],
  ["/plans/:id", ({ id }) => <PlanPage key={id} session={id ?? ""} />],
  ["/workflows", () => <WorkflowsPage key="workflows" />],
  ["/workflows/:name", ({ name }) => <WorkflowsPage key={name} name={name ?? ""} />],
  ["/memory", () => <MemoryView />],
  ["/stories", () => <StoriesView key="stories" />],
  ["/stories/:id", ({ id }) => <StoriesView key={id} story={id ?? ""} />],
  ["/councils", () => <CouncilsView />],
  ["/fleet", () => <FleetView />],
  ["/webhooks", () => <WebhooksView />],
  ["/connect", () => <ConnectView />],
];

function view(path: string): ComponentChildren {
  for (const [pattern, show] of VIEWS) {
    const parts = match(pattern, path);
    if (parts) return show(parts);
  }
  return (
    <>
      <PageHead title="Not found" />
      <Empty title="There is no such page.">
        <Link href="/executions">To the executions</Link>
      </Empty>
    </>
  );
}

/** Keeps a fault of one view from taking the whole page with it. */
function Guarded({ children }: { children: ComponentChildren }) {
  const [fault, again] = useErrorBoundary((error) => console.error(error));
  if (!fault) return <>{children}</>;
  return (
    <>
      <PageHead title="Something went wrong" />
      <Empty title="This view failed.">
        <p>{fault instanceof Error ? fault.message : String(fault)}</p>
        <Button onClick={again}>Try again</Button>
      </Empty>
    </>
  );
}

/** The page: sign-in first where it is needed, then the view of the path. */
export function App() {
  const { path } = place.value;
  if (standing.value === "unknown") {
    return (
      <main class="alone" id="view" tabIndex={-1}>
        <Loading what="Connecting" />
      </main>
    );
  }
  if (standing.value !== "in") return <LoginView />;
  return (
    <Shell>
      <Guarded key={path.startsWith("/chat/") ? "/chat" : path}>{view(path)}</Guarded>
      <Toasts />
    </Shell>
  );
}

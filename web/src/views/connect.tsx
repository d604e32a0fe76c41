import type { ComponentChildren } from "preact";
import { grpc } from "../session";
import { Copy, PageHead } from "../ui";

/** How else this fleet can be used, with its own addresses. */
export function ConnectView() {
  const here = location.origin;
  // As the gateway reaches it: on its own machine that is the address for everybody there.
  const server = grpc.value.replace(/^\w+:\/\//, "") || "127.0.0.1:50055";
  return (
    <>
      <PageHead title="Connect" lead="Everything that this page does can be done from a terminal, a program or an editor." />
      <div class="stack connect">
        <Way title="Command line" code={`export FLEET_SERVER=${server}\nfleet run "Add hello_world()" --repo .\nfleet watch <execution id>\nfleet chat`}>
          On the machine where the fleet runs, no address is needed. Elsewhere set <code>FLEET_TOKEN</code> too.
        </Way>
        <Way
          title="HTTP"
          code={`curl -H "Authorization: Bearer $FLEET_TOKEN" ${here}/api/executions\ncurl -H "Authorization: Bearer $FLEET_TOKEN" -H "Accept: text/event-stream" \\\n  ${here}/api/executions/<execution id>/events`}
        >
          Every call is described in <a href="/api/openapi.json">the OpenAPI document</a>. Send an <code>Idempotency-Key</code> with what must not be done twice.
        </Way>
        <Way title="WebSocket" code={`${here.replace(/^http/, "ws")}/api/ws/executions/<execution id>?from=1`}>
          One message for each event, numbered; <code>from</code> goes on where a connection broke.
        </Way>
        <Way title="gRPC" code={`grpcurl -plaintext -H "authorization: Bearer $FLEET_TOKEN" \\\n  ${server} fleet.orchestrator.v1.OrchestratorService/GetStatus`}>
          The contract is in the repository under <code>proto/</code>.
        </Way>
        <Way
          title="Editors and other agents (MCP)"
          code={JSON.stringify({ mcpServers: { fleet: { command: "fleet", args: ["mcp", "--server", server] } } }, null, 2)}
        >
          <code>fleet mcp</code> offers submit, watch, result and approve as tools.
        </Way>
      </div>
    </>
  );
}

function Way({ title, code, children }: { title: string; code: string; children: ComponentChildren }) {
  return (
    <section class="card stack-tight" aria-label={title}>
      <div class="row-spread">
        <h2>{title}</h2>
        <Copy text={code} what={title} />
      </div>
      <p>{children}</p>
      <pre class="code-box" tabIndex={0}>
        <code>{code}</code>
      </pre>
    </section>
  );
}

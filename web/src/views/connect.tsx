import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { Button, PageHead, toast } from "../ui";

/** How else this fleet can be used. */
export function ConnectView() {
  const here = location.origin;
  return (
    <>
      <PageHead title="Connect" lead="Everything that this page does can be done from a terminal, a program or an editor." />
      <div class="stack connect">
        <Way title="Command line" code={`fleet run "Add hello_world()" --repo .\nfleet watch <execution id>\nfleet chat`}>
          On the machine where the fleet runs, the command line finds it by itself.
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
        <Way title="gRPC" code={`grpcurl -plaintext -H "authorization: Bearer $FLEET_TOKEN" \\\n  127.0.0.1:50055 fleet.orchestrator.v1.OrchestratorService/GetStatus`}>
          Its address is what <code>fleet up</code> prints, 127.0.0.1:50055 unless it was set otherwise; the contract is in the repository under <code>proto/</code>.
        </Way>
        <Way title="Editors and other agents (MCP)" code={`{\n  "mcpServers": {\n    "fleet": { "command": "fleet", "args": ["mcp"] }\n  }\n}`}>
          <code>fleet mcp</code> offers submit, watch, result and approve as tools.
        </Way>
      </div>
    </>
  );
}

function Way({ title, code, children }: { title: string; code: string; children: ComponentChildren }) {
  const [copied, setCopied] = useState(false);
  async function copy(): Promise<void> {
    try {
      await navigator.clipboard.writeText(code);
      setCopied(true);
      toast("Copied.");
    } catch {
      toast("The browser does not let this page copy; select the text instead.", { bad: true });
    }
  }
  return (
    <section class="card stack-tight" aria-label={title}>
      <div class="row-spread">
        <h2>{title}</h2>
        <Button small label={`Copy: ${title}`} onClick={() => void copy()}>
          {copied ? "Copied" : "Copy"}
        </Button>
      </div>
      <p>{children}</p>
      <pre class="code-box" tabIndex={0}>
        <code>{code}</code>
      </pre>
    </section>
  );
}

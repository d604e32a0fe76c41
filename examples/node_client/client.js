// A client in Node: hands a task in, follows it, prints how it ended.
//
//   npm install && node client.js 127.0.0.1:50055 TOKEN /path/to/repository "Add a test" [TASK_ID]
//
// The service is read from proto/, so nothing has to be generated.
const path = require("node:path");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [address, token, repository, task, given] = process.argv.slice(2);
if (!task) {
  console.error("usage: node client.js ADDRESS TOKEN REPOSITORY TASK [TASK_ID]");
  process.exit(2);
}

const root = path.join(__dirname, "..", "..", "proto");
const definition = loader.loadSync("fleet/orchestrator/v1/orchestrator.proto", {
  includeDirs: [root], keepCase: true, longs: String, enums: String, defaults: true,
});
const { OrchestratorService } = grpc.loadPackageDefinition(definition).fleet.orchestrator.v1;
const client = new OrchestratorService(address, grpc.credentials.createInsecure());
const metadata = new grpc.Metadata();
metadata.set("authorization", `Bearer ${token}`);

const ask = (method, request) =>
  new Promise((resolve, reject) =>
    client[method](request, metadata, (error, reply) => (error ? reject(error) : resolve(reply))));

// Where the result of a task comes on NATS, or that of one of its agents; an id is one token, whatever is in it.
function resultSubject(...ids) {
  return ["agent.results", ...ids.map((id) => encodeURIComponent(id).replace(/\./g, "%2E"))].join(".");
}

function follow(execution_id, from_sequence) {
  return new Promise((resolve, reject) => {
    let last = from_sequence;
    const stream = client.StreamExecution({ execution_id, from_sequence }, metadata);
    stream.on("data", (event) => {
      last = Number(event.sequence) + 1;
      if (event.type === "tool_started") console.error(`${event.agent_id}: ${JSON.parse(event.payload_json).entry.operation}`);
    });
    stream.on("end", () => resolve(last));
    stream.on("error", (error) => (error.code === grpc.status.UNAVAILABLE ? resolve(-last) : reject(error)));
  });
}

async function main() {
  const task_id = given || `example-${Date.now().toString(36)}`;
  const accepted = await ask("SubmitTask", {
    deliberate: {
      task_id,
      task_description: task,
      repo: { path: repository },
      num_agents: 1,
    },
  });
  console.error(`on NATS its result comes on ${resultSubject(task_id)}`);
  // A stream that breaks is taken up again behind its last event.
  let next = 0;
  while ((next = await follow(accepted.execution_id, next)) < 0) {
    next = -next;
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
  const { execution } = await ask("GetExecution", { execution_id: accepted.execution_id });
  console.log(JSON.stringify({ execution_id: execution.execution_id, status: execution.status, winner: execution.winner_id }));
  client.close();
}

main().catch((error) => {
  console.error(error.message);
  process.exit(1);
});

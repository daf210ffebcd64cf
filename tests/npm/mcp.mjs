// The TypeScript clients of MCP: the released one, and the one that speaks the revision without sessions.
// Usage: node mcp.mjs host. Prints what it saw as JSON; asks for kills of the server on the way.
import { createInterface } from "node:readline";
import { Client as OldClient } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport as OldTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const [, , host] = process.argv;
const url = new URL(`http://${host}/mcp`);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
process.on("unhandledRejection", () => {}); // the clients leave some when a server dies

async function killed() {
  console.log(JSON.stringify({ please: "kill" }));
  await lines.next();
}

const about = { name: "test", version: "1" };
const capabilities = { elicitation: {} };
const kinds = {
  released: async (ask) => {
    const client = new OldClient(about, { capabilities });
    client.setRequestHandler(ElicitRequestSchema, (request) => ask(request.params));
    await client.connect(new OldTransport(url));
    return client;
  },
  stateless: async (ask) => {
    const client = new Client(about, { capabilities, versionNegotiation: { mode: "auto" } });
    client.setRequestHandler("elicitation/create", (request) => ask(request.params));
    await client.connect(new StreamableHTTPClientTransport(url));
    return client;
  },
};

const seen = {};
for (const [kind, connect] of Object.entries(kinds)) {
  const found = (seen[kind] = { asked: [], progress: [] });
  const client = await connect(async (params) => {
    found.asked.push(params.message);
    await killed();
    return { action: "accept", content: { confirm: true } };
  });
  const call = async (name, args, options) => (await client.callTool({ name, arguments: args }, ...options)).content[0].text;
  const options = (more) => (kind === "released" ? [undefined, more] : [more]);
  found.tools = (await client.listTools()).tools.length;
  found.greeted = await call("greet", { name: "Ann" }, options({}));
  found.wrong = (await client.callTool({ name: "greet", arguments: { nam: "Ann" } })).isError;
  const onprogress = (one) => found.progress.push(one.progress);
  found.computed = await call("slow_compute", { seconds: 0.2, label: kind }, options({ onprogress }));
  found.deleted = await call("confirm_delete", { filename: kind }, options({ timeout: 60000 }));
  if (kind === "released") {
    const held = call("slow_compute", { seconds: 1, label: "cut" }, options({ timeout: 60000 }));
    await new Promise((resolve) => setTimeout(resolve, 400));
    await killed();
    found.cut = await held;
  }
  await client.close();
}
console.log(JSON.stringify(seen));
process.exit(0);

// Calls agents and says numbered frames through the unmodified AgentClient while its servers are restarted:
// `node rolling.mjs HOST...`. Stops at a line on stdin, and writes what it saw as JSON.
import { createInterface } from "node:readline";
import { AgentClient } from "agents/client";
import { WebSocket } from "ws";

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const QUICK = { minReconnectionDelay: 50, maxReconnectionDelay: 300, minUptime: 100 };
let stopped = false;

async function talk(host, number) {
  const name = `npm-${number}`;
  const client = new AgentClient({ agent: "RollingList", name, host, WebSocket, ...QUICK });
  const seen = { name, done: [], failed: [], said: 0, echoed: [], closes: [] };
  client.addEventListener("close", ({ code }) => seen.closes.push(code));
  client.addEventListener("message", ({ data }) => {
    if (typeof data === "string" && data.startsWith("echo ")) seen.echoed.push(Number(data.slice(5)));
  });
  await client.ready;
  while (!stopped) {
    const item = `${seen.done.length + seen.failed.length}`;
    client.send(String(++seen.said));
    await client.call("append", [item], { timeout: 30_000 }).then(
      () => seen.done.push(item),
      (error) => seen.failed.push({ item, error: error.message }),
    );
    await sleep(50);
  }
  await sleep(1000);
  client.close();
  return seen;
}

const talking = Promise.all(process.argv.slice(2).map(talk));
createInterface({ input: process.stdin }).once("line", () => (stopped = true));
console.log(JSON.stringify(await talking));
process.exit(0);

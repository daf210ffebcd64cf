// Runs scenarios against a server and writes down every frame, in both directions: `node drive.mjs HOST`.
// Whoever starts it restarts the server when it asks for that, and reads the transcript from its last line.
import assert from "node:assert/strict";
import { createInterface } from "node:readline";
import { WebSocket } from "ws";

export const host = process.argv[2];
const UUID = /[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/g;
const PATIENCE = 5000;
const orders = createInterface({ input: process.stdin });
let now;

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export async function until(what, isTrue, patience = PATIENCE) {
  for (const end = Date.now() + patience; !isTrue(); await sleep(5))
    if (Date.now() > end) throw new Error(`waited in vain until ${what}`);
}

/** Ask whoever started us to end the server, politely or not, and to start it again. */
export async function restart(how) {
  const done = new Promise((resolve) => orders.once("line", resolve));
  console.log(JSON.stringify({ please: how }));
  await done;
}

/** Note what a client saw, and whether it is what it should be; quietly, if it is another each time. */
export function expect(what, seen, wanted, { quietly = false } = {}) {
  if (!quietly) now.seen[what] = seen === undefined ? "undefined" : structuredClone(seen);
  try {
    assert.deepEqual(seen, wanted);
  } catch {
    now.failures.push(`${what}: ${JSON.stringify(seen)} instead of ${JSON.stringify(wanted)}`);
  }
}

/** Note what a call gave: its result, or what it was refused with. */
export async function outcome(promise) {
  return promise.then(
    (result) => (result === undefined ? "nothing" : { result }),
    (error) => ({ error: error.message }),
  );
}

/** The class a client makes its sockets of; writes everything down under the client's name. */
export function recorded(client) {
  const scenario = now;
  const names = new Map();
  const plain = (text) => {
    return text.replace(UUID, (id) => names.get(id) ?? names.set(id, `id-${names.size + 1}`).get(id));
  };
  const frame = (data, isBinary) => {
    if (isBinary) return { binary: [...data] };
    const text = plain(data.toString());
    if (text.length > 5000) return { long: text.length };
    try {
      return JSON.parse(text);
    } catch {
      return { text };
    }
  };
  const sockets = (scenario.clients[client] ??= []);
  return class extends WebSocket {
    constructor(url, protocols) {
      super(url, protocols);
      const { pathname, search } = new URL(this.url);
      const record = { path: pathname + search.replace(/_pk=[^&]*&?/, "").replace(/^\?$/, ""), sent: [], received: [] };
      this.record = record;
      scenario.open.add(this);
      this.on("message", (data, isBinary) => record.received.push(frame(data, isBinary)));
      this.on("error", (error) => {
        const status = /Unexpected server response: (\d+)/.exec(error.message);
        if (status) record.handshake = Number(status[1]);
      });
      this.on("open", () => sockets.push(record));
      this.on("close", (code, reason) => {
        scenario.open.delete(this);
        if (record.handshake) sockets.push(record);
        else record.closed = `${code} ${reason}`.trim();
      });
    }

    send(data) {
      this.record.sent.push(frame(typeof data === "string" ? data : new Uint8Array(data), typeof data !== "string"));
      super.send(data);
    }
  };
}

/** How often a client tried is a matter of time: of attempts that went the same way, one is kept. */
function withoutRepeats(sockets) {
  return sockets.filter((record, at) => at === 0 || JSON.stringify(record) !== JSON.stringify(sockets[at - 1]));
}

/** Run scenarios, one after the other, or `only` these; `end` closes the clients a scenario made. */
export async function run(scenarios, { end, only = process.argv.slice(3), patience = 20_000 }) {
  const transcript = {};
  for (const [name, scenario] of Object.entries(scenarios)) {
    if (only.length && !only.includes(name)) continue;
    now = { clients: {}, seen: {}, failures: [], open: new Set() };
    const { clients, seen, failures, open } = now;
    const work = scenario(name).catch((error) => failures.push(String(error.stack)));
    const late = await Promise.race([work.then(() => false), sleep(patience).then(() => true)]);
    if (late) failures.push("timed out");
    await end();
    await until("all sockets are closed", () => open.size === 0, 1500).catch(() => {});
    for (const socket of open) {
      socket.record.hangs = true;
      socket.terminate();
    }
    await until("all sockets are gone", () => open.size === 0);
    for (const client of Object.keys(clients)) clients[client] = withoutRepeats(clients[client]);
    transcript[name] = { clients, seen, failures };
  }
  // A pipe takes so much at once; who exits before it is read loses the rest.
  process.stdout.write(`${JSON.stringify(transcript)}\n`, () => process.exit(0));
}

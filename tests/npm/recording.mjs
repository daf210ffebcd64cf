// Runs scenarios against a server and writes down every frame, in both directions: `node drive.mjs HOST`.
// Whoever starts it restarts the server when it asks for that, and reads the transcript from its last line.
import assert from "node:assert/strict";
import { AsyncLocalStorage } from "node:async_hooks";
import { createInterface } from "node:readline";
import { WebSocket } from "ws";

export const host = process.argv[2];
const UUID = /[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/g;
// A machine may have a lot to do: this is how long a test takes to fail.
const PATIENCE = 60_000;
const orders = createInterface({ input: process.stdin });
const scenarios = new AsyncLocalStorage();

/** The scenario that runs: what its clients said and saw. Several may run side by side. */
export const scenario = () => scenarios.getStore();

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
  const now = scenario();
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
  const { open, clients } = scenario();
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
  const sockets = (clients[client] ??= []);
  return class Recorded extends WebSocket {
    /** What is being held back of what the client sends; null: nothing. */
    static held = null;

    /** Send what was held back, and hold nothing back from now on. */
    static release() {
      const held = Recorded.held;
      Recorded.held = null;
      for (const send of held) send();
    }

    constructor(url, protocols) {
      // As in a browser: every message is a task of its own, however fast they come.
      super(url, protocols, { allowSynchronousEvents: false });
      const { pathname, search } = new URL(this.url);
      const record = { path: pathname + search.replace(/_pk=[^&]*&?/, "").replace(/^\?$/, ""), sent: [], received: [] };
      this.record = record;
      open.add(this);
      this.on("message", (data, isBinary) => record.received.push(frame(data, isBinary)));
      this.on("error", (error) => {
        const status = /Unexpected server response: (\d+)/.exec(error.message);
        if (status) record.handshake = Number(status[1]);
      });
      this.on("open", () => sockets.push(record));
      this.on("close", (code, reason) => {
        open.delete(this);
        if (record.handshake) sockets.push(record);
        else record.closed = `${code} ${reason}`.trim().replace(/reference [0-9a-f]{8}/, "reference …"); // it is random
      });
    }

    send(data) {
      this.record.sent.push(frame(typeof data === "string" ? data : new Uint8Array(data), typeof data !== "string"));
      if (Recorded.held) Recorded.held.push(() => super.send(data));
      else super.send(data);
    }
  };
}

/** How often a client tried is a matter of time: of attempts that went the same way, one is kept. */
function withoutRepeats(sockets) {
  return sockets.filter((record, at) => {
    const before = sockets[at - 1];
    return !before || (!isCutShort(record, before) && JSON.stringify(record) !== JSON.stringify(before));
  });
}

/** Whether the client was closed while it tried again what had been refused, before it was told anything. */
function isCutShort({ path, received, closed }, before) {
  return closed === "1000" && !received.length && path === before.path && before.closed !== "1000";
}

/** Run one scenario; `end` closes the clients it made. */
async function play(name, work, { end, patience }) {
  const now = scenario();
  const { clients, seen, failures, open } = now;
  const played = work(name).catch((error) => failures.push(String(error.stack)));
  const late = await Promise.race([played.then(() => false), sleep(patience).then(() => true)]);
  if (late) failures.push("timed out");
  await end(now);
  await until("all sockets are closed", () => open.size === 0, 1500).catch(() => {});
  for (const socket of open) {
    socket.record.hangs = true;
    socket.terminate();
  }
  await until("all sockets are gone", () => open.size === 0);
  for (const client of Object.keys(clients)) clients[client] = withoutRepeats(clients[client]);
  return { clients, seen, failures, ...(now.stored && { stored: now.stored }) };
}

/** Run scenarios, or `only` these: one after the other, or so many side by side. */
export async function run(all, { end, only = process.argv.slice(3), patience = 120_000, together = 1, finish = () => {} }) {
  const transcript = {};
  const waiting = Object.entries(all).filter(([name]) => !only.length || only.includes(name));
  const playing = Array.from({ length: together }, async () => {
    for (let next; (next = waiting.shift()); ) {
      const [name, work] = next;
      const now = { clients: {}, seen: {}, failures: [], open: new Set() };
      transcript[name] = await scenarios.run(now, () => play(name, work, { end, patience }));
    }
  });
  await Promise.all(playing);
  await finish();
  // A pipe takes so much at once; who exits before it is read loses the rest.
  process.stdout.write(`${JSON.stringify(transcript)}\n`, () => process.exit(0));
}

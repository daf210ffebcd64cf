// The same agents as server.py has, for the original.
import { Agent, callable, routeAgentRequest } from "agents";

const REFUSED = { forbidden: 403, missing: 404, broken: 500, busy: 429, down: 503 };

class Common extends Agent {
  initialState = { count: 0 };

  validateStateChange(state) {
    if (state?.count === -1) throw new Error("count may not be negative");
  }

  shouldConnectionBeReadonly(_connection, { request }) {
    return new URL(request.url).searchParams.get("mode") === "readonly";
  }

  shouldSendProtocolMessages(_connection, { request }) {
    return new URL(request.url).searchParams.get("mode") !== "plain";
  }

  onConnect(connection, { request }) {
    const mode = new URL(request.url).searchParams.get("mode");
    if (mode === "fails") throw new Error("not you");
    if (mode === "closed") {
      connection.send(JSON.stringify({ announced: "not you" }));
      connection.close(4002, "not you");
    }
  }

  onMessage(connection, message) {
    if (message === "fail") throw new Error("not this");
    const heard = typeof message === "string" ? message : { bytes: [...new Uint8Array(message)] };
    connection.send(JSON.stringify({ heard }));
  }

  async onRequest(request) {
    const { pathname } = new URL(request.url);
    return Response.json({ method: request.method, path: pathname, body: await request.text(), name: this.name });
  }

  onBeforeSubAgent(_request, { name }) {
    if (REFUSED[name]) return new Response("no", { status: REFUSED[name] });
  }

  add(a, b) {
    return a + b;
  }

  nothing() {}

  echo(...values) {
    return values;
  }

  boom() {
    throw new Error("boom!");
  }

  unserializable() {
    return 1n;
  }

  hidden() {
    return "not for clients";
  }

  numbers(stream, n) {
    for (let number = 0; number < n; number++) stream.send(number);
    stream.end();
  }

  broken_numbers(stream, n) {
    for (let number = 0; number < n; number++) stream.send(number);
    throw new Error("out of numbers");
  }

  bump() {
    this.setState({ count: this.state.count + 1 });
    return this.state.count;
  }

  announce(what) {
    this.broadcast(JSON.stringify({ announced: what }));
  }

  kick(code, reason) {
    for (const connection of this.getConnections()) connection.close(code, reason);
  }

  path() {
    return this.selfPath.map((step) => step.name);
  }

  async end() {
    await this.destroy();
    return "destroyed";
  }

  async drop(name) {
    await this.deleteSubAgent(Desk, name);
  }
}

const PLAIN = ["add", "nothing", "echo", "boom", "unserializable", "bump", "announce", "kick", "path", "end", "drop"];
for (const name of PLAIN) callable()(Common.prototype[name]);
for (const name of ["numbers", "broken_numbers"]) callable({ streaming: true })(Common.prototype[name]);

export class Room extends Common {}
export class Desk extends Common {}
export class Reporter extends Common {}
export class Source extends Common {}

export class Plain extends Agent {
  add(a, b) {
    return a + b;
  }
}
callable()(Plain.prototype.add);

export class Silent extends Agent {
  static options = { sendIdentityOnConnect: false };
  initialState = { count: 0 };
}

export default {
  async fetch(request, env) {
    const refuse = (_request, { name }) => {
      if (name === "closed") return new Response("closed", { status: 403 });
    };
    const answer = await routeAgentRequest(request, env, { onBeforeConnect: refuse });
    return answer ?? new Response("Not Found", { status: 404 });
  },
};

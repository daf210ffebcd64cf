// The same agents as benchmarks/anchor.py and benchmarks/schedules.py have, written for the original.
import { Agent, callable, getAgentByName, routeAgentRequest } from "agents";

export class Child extends Agent {
  initialState = { n: 0 };

  @callable() rpcEcho(value) {
    return value;
  }

  @callable() bump(times) {
    for (let i = 0; i < times; i++) this.setState({ n: this.state.n + 1 });
    return this.state.n;
  }

  echo(value) {
    return value;
  }

  increment() {
    if (!this.made) {
      this.sql`CREATE TABLE IF NOT EXISTS counters (key TEXT PRIMARY KEY, value INTEGER DEFAULT 0)`;
      this.made = true;
    }
    this.sql`INSERT INTO counters (key, value) VALUES ('k', 1) ON CONFLICT(key) DO UPDATE SET value = value + 1`;
    return this.sql`SELECT value FROM counters WHERE key = 'k'`[0].value;
  }

  tick() {}

  async plan(n, due) {
    for (let i = 0; i < n; i++) await this.schedule(new Date(due), "tick", { i });
  }
}

export class Nested extends Agent {
  async deep(depth) {
    if (depth <= 1) return 1;
    this.below ??= await this.subAgent(Nested, "n");
    return 1 + (await this.below.deep(depth - 1));
  }
}

export class Parent extends Agent {
  initialState = { n: 0 };

  @callable() rpcEcho(value) {
    return value;
  }

  async echo(n) {
    const child = await this.subAgent(Child, "echo");
    for (let i = 0; i < n; i++) await child.echo({ a: 1, b: "two" });
  }

  async increment(n, inFlight) {
    const child = await this.subAgent(Child, "count");
    await child.increment();
    const work = async () => {
      for (let i = 0; i < n / inFlight; i++) await child.increment();
    };
    await Promise.all(Array.from({ length: inFlight }, work));
  }

  async spawn(first, n, write) {
    for (let i = first; i < first + n; i++) {
      const child = await this.subAgent(Child, `c${i}`);
      if (write) await child.increment();
    }
  }

  async first(name) {
    const child = await this.subAgent(Child, name);
    return child.increment();
  }

  ticks = [];

  tick() {
    this.ticks.push(Date.now());
  }

  async plan(n, due) {
    for (let i = 0; i < n; i++) await this.schedule(new Date(due), "tick", { i });
  }

  async planBelow(n, due) {
    const child = await this.subAgent(Child, "plan");
    await child.plan(n, due);
  }

  ticked() {
    return this.ticks;
  }

  async deep(depth, n) {
    const child = await this.subAgent(Nested, "n");
    for (let i = 0; i < n; i++) await child.deep(depth);
  }
}

export default {
  async fetch(request, env) {
    if (new URL(request.url).pathname.startsWith("/agents/")) return routeAgentRequest(request, env);
    if (request.method !== "POST") return new Response("ready");
    const { agent, op, args } = await request.json();
    try {
      const parent = await getAgentByName(env.Parent, agent);
      return Response.json({ ok: true, result: (await parent[op](...args)) ?? null });
    } catch (error) {
      return Response.json({ ok: false, error: String(error) });
    }
  },
};

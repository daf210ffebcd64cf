import { Agent, callable, getAgentByName } from "agents";

export class Log extends Agent<Env> {
  onStart() {
    this.sql`CREATE TABLE IF NOT EXISTS lines (text TEXT NOT NULL)`;
  }

  async add(text: string) {
    this.sql`INSERT INTO lines VALUES (${text})`;
    const [row] = this.sql<{ n: number }>`SELECT count(*) AS n FROM lines`;
    return row.n;
  }
}

export class Counter extends Agent<Env, { count: number }> {
  initialState = { count: 0 };

  @callable()
  async increment(by: number) {
    this.setState({ ...this.state, count: this.state.count + by });
    const log = await this.subAgent(Log, "changes");
    const lines = await log.add(`+${by}`);
    return `count ${this.state.count}, lines in the log ${lines}`;
  }
}

export default {
  async fetch(request: Request, env: Env) {
    const counter = await getAgentByName(env.Counter, "lobby");
    return new Response(await counter.increment(2));
  },
};

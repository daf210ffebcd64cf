// The unmodified client of AG-UI, with its verifier: `node ag-ui.mjs HOST PACKAGE calm|killed`.
// Killed means that the server dies where a scenario says so; everything has to end the same.
import assert from "node:assert/strict";
import { host, restart, until } from "./recording.mjs";

const [, , , name, how] = process.argv;
const { HttpAgent } = await import(name);
// The client leaves the end of a stream unhandled when the server dies.
process.on("unhandledRejection", () => {});
console.error = () => {};
const failures = {};

class Page extends HttpAgent {
  connect(input) {
    return new HttpAgent({ url: `${this.url}/connect`, threadId: this.threadId }).run(input);
  }
}

const page = (kind, thread, messages = []) => {
  const agent = new Page({ url: `http://${host}/agents/${kind}/${thread}/ag-ui`, threadId: thread });
  agent.setMessages(messages);
  return agent;
};
const say = (agent, id, content) => agent.addMessage({ id, role: "user", content });
const recorder = () => {
  const seen = [];
  return { seen, onEvent: ({ event }) => void seen.push(event) };
};
const own = (agent) => agent.messages.filter((one) => !one.subagentRunId && one.role !== "activity");
const shape = (agent) => own(agent).map((one) => one.toolCalls ? `call ${one.toolCalls[0].function.name}` : `${one.role} ${one.content}`);
const types = (seen) => seen.map((one) => one.type);
const WORDS = Array.from({ length: 40 }, (_, at) => `w${at} `).join("");

/** Run until an event comes that fits, then end the server, and start it again. */
async function cut(agent, parameters, fits) {
  const record = recorder();
  const over = agent.runAgent(parameters, record).then(() => "finished", () => "failed");
  await until("there is something to cut", () => record.seen.some(fits));
  await restart("kill");
  await over;
  return record;
}

/** Run, and if this is about crashes, have the server killed in the middle first: the same run goes on. */
async function run(agent, parameters, fits) {
  if (how === "killed" && fits) await cut(agent, parameters, fits);
  const record = recorder();
  await agent.runAgent(parameters, record);
  return record.seen;
}

async function fresh(agent) {
  const other = page(new URL(agent.url).pathname.split("/")[2], agent.threadId);
  const record = recorder();
  await other.connectAgent({ runId: `connect-${Math.random()}` }, record);
  return { other, seen: record.seen };
}

const isText = (one) => one.type === "TEXT_MESSAGE_CONTENT" && one.delta.includes("w");
const scenarios = {
  async "text, in the middle of which the server dies"() {
    const agent = page("writer", "text");
    say(agent, "u1", how === "killed" ? "story hangs" : "story");
    const seen = await run(agent, { runId: "r1" }, isText);
    assert.deepEqual(shape(agent).slice(1), [`assistant ${WORDS}`]);
    const again = recorder();
    await agent.runAgent({ runId: "r1" }, again);
    assert.deepEqual(shape(agent).slice(1), [`assistant ${WORDS}`]);
    assert.equal(types(again.seen).filter((one) => one === "RUN_FINISHED").length, 1);
    say(agent, "u2", "more think");
    const second = await run(agent, { runId: "r2" });
    assert.ok(!types(second).includes("MESSAGES_SNAPSHOT"), types(second).join());
    assert.deepEqual(shape(agent).slice(2), ["user more think", "reasoning let me think", `assistant ${WORDS}`]);
    const { other } = await fresh(agent);
    assert.deepEqual(other.messages.map((one) => [one.id, one.content]), agent.messages.map((one) => [one.id, one.content]));
    assert.equal(types(seen).at(-1), "RUN_FINISHED");
  },
  async "a tool, in the middle of which the server dies"() {
    const agent = page("writer", "tool");
    say(agent, "u1", how === "killed" ? "look hangs" : "look");
    const isLingering = (one) => one.type === "TOOL_CALL_END" && one.toolCallId.endsWith("-1");
    await run(agent, { runId: "r1" }, isLingering);
    assert.deepEqual(shape(agent).slice(1), ["call look", "tool tree seen", "call linger", "tool done", "assistant seen "]);
    assert.deepEqual(agent.state, { looked: ["tree"], title: "none" });
  },
  async "a tool of the page"() {
    const agent = page("writer", "page");
    let ran = 0;
    const tools = [{ name: "get_time", description: "The time", parameters: { type: "object", properties: { zone: { type: "string" } } } }];
    say(agent, "u1", "time");
    const answered = async (parameters) => {
      const record = recorder();
      await agent.runAgent({ ...parameters, tools }, record);
      return record.seen;
    };
    const seen = await answered({ runId: "r1" });
    assert.deepEqual(shape(agent).slice(1), ["call get_time"]);
    const open = () => {
      const done = new Set(agent.messages.map((one) => one.toolCallId));
      return agent.messages.flatMap((one) => one.toolCalls ?? []).filter((one) => !done.has(one.id));
    };
    assert.equal(agent.pendingInterrupts.length, 0);
    if (how === "killed") await restart("kill");
    const { other } = await fresh(agent);
    assert.deepEqual(shape(other), shape(agent));
    for (const one of open()) {
      ran += 1;
      agent.addMessage({ id: "t1", role: "tool", toolCallId: one.id, content: "12:00" });
    }
    await answered({ runId: "r2" });
    assert.equal(own(agent).at(-1).content, "it is noon ");
    assert.equal(open().length, 0);
    await answered({ runId: "r2" });
    await answered({ runId: "r1" });
    assert.equal(open().length, 0);
    const late = (await fresh(agent)).other;
    assert.deepEqual(shape(late), ["user time", "call get_time", "tool 12:00", "assistant it is noon "]);
    assert.equal(ran, 1);
    assert.equal(types(seen).at(-1), "RUN_FINISHED");
  },
  async "an approval three levels down, answered after the server has died"() {
    const agent = page("office", "deep");
    say(agent, "u1", "buy");
    const seen = await run(agent, { runId: "r1" });
    const started = seen.filter((one) => one.type === "SUBAGENT_STARTED");
    assert.deepEqual(started.map((one) => one.name), ["Buyer", "Clerk"]);
    assert.equal(started[1].parentSubagentRunId, started[0].subagentRunId);
    assert.equal(agent.pendingInterrupts.length, 1);
    if (how === "killed") await restart("kill");
    const { other } = await fresh(agent);
    assert.deepEqual(other.pendingInterrupts, agent.pendingInterrupts);
    const resume = agent.pendingInterrupts.map((one) => ({ interruptId: one.id, status: "resolved", payload: { approved: true } }));
    const isEnd = (one) => one.type === "RUN_STARTED";
    await run(agent, { runId: "r2", resume }, isEnd);
    assert.equal(own(agent).at(-1).content, "bought ");
    assert.equal(agent.pendingInterrupts.length, 0);
    await agent.runAgent({ runId: "r2", resume });
    assert.equal(agent.pendingInterrupts.length, 0);
    assert.equal((await fresh(agent)).other.pendingInterrupts.length, 0);
    await assert.rejects(other.runAgent({ runId: "r3", resume }), /409/);
  },
  async "a question of the code of an agent"() {
    const agent = page("writer", "choice");
    say(agent, "u1", "choose");
    await run(agent, { runId: "r1" });
    const [interrupt] = agent.pendingInterrupts;
    assert.deepEqual(interrupt.responseSchema, { type: "string", enum: ["red", "blue"] });
    if (how === "killed") await restart("kill");
    const wrong = page("writer", "choice", agent.messages);
    await assert.rejects(
      wrong.runAgent({ runId: "r2", resume: [{ interruptId: interrupt.id, status: "resolved", payload: "green" }] }),
      /400/,
    );
    await run(agent, { runId: "r3", resume: [{ interruptId: interrupt.id, status: "resolved", payload: "blue" }] });
    assert.equal(own(agent).at(-1).content, "chosen ");
  },
  async "two tabs"() {
    const one = page("writer", "tabs");
    say(one, "u1", how === "killed" ? "story hangs" : "story");
    const first = run(one, { runId: "r1" }, isText);
    const two = page("writer", "tabs");
    say(two, "u1", how === "killed" ? "story hangs" : "story");
    if (how === "killed") await first;
    await Promise.all([first, run(two, { runId: "r1" })]);
    assert.deepEqual(shape(two), shape(one));
    assert.deepEqual(shape(one).slice(1), [`assistant ${WORDS}`]);
  },
};
for (const [title, scenario] of Object.entries(scenarios)) {
  try {
    if (process.env.TRACE) process.stderr.write(`${title}\n`);
    await scenario();
    failures[title] = [];
  } catch (error) {
    failures[title] = [error.stack ?? String(error)];
  }
}
console.log(JSON.stringify(Object.fromEntries(Object.entries(failures).map(([title, found]) => [title, { failures: found }]))));
process.exit(0);

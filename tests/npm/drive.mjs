// What the unmodified AgentClient and agentFetch of `agents/client` do with a server.
import { AgentClient, agentFetch } from "agents/client";
import { expect, host, outcome, recorded, restart, run, sleep, until } from "./recording.mjs";

const QUICK = { minReconnectionDelay: 50, maxReconnectionDelay: 300, minUptime: 100 };
const clients = [];

function connect(label, options) {
  const client = new AgentClient({ agent: "Room", host, WebSocket: recorded(label), ...QUICK, ...options });
  client.updates = [];
  client.errors = [];
  client.others = [];
  client.closes = [];
  client.options.onStateUpdate = (state, source) => client.updates.push([state, source]);
  client.options.onStateUpdateError = (error) => client.errors.push(error);
  client.addEventListener("close", ({ code, reason }) => client.closes.push(`${code} ${reason}`.trim()));
  client.addEventListener("message", ({ data }) => {
    const message = typeof data === "string" ? JSON.parse(data) : data;
    if (message.heard !== undefined || message.announced !== undefined) client.others.push(message);
  });
  clients.push(client);
  return client;
}

async function connected(label, options) {
  const client = connect(label, options);
  await client.ready;
  return client;
}

async function end() {
  for (const client of clients.splice(0)) client.close();
}

/** A call is answered after everything that was sent before it. One by one: what the first sent, the second has got. */
async function settled(...all) {
  for (const client of all) await client.call("nothing");
}

const count = (n) => ({ count: n });

async function identity(name) {
  const ann = await connected("ann", { name });
  expect("identity", [ann.name, ann.agent, ann.identified], [name, "room", true]);
  expect("state when ready", ann.state, count(0));
  expect("updates", ann.updates, [[count(0), "server"]]);
}

async function no_state(name) {
  const ann = await connected("ann", { agent: "Plain", name });
  expect("identity", [ann.name, ann.agent], [name, "plain"]);
  expect("state", ann.state, undefined);
  expect("call", await ann.call("add", [2, 3]), 5);
}

async function no_identity(name) {
  const ann = connect("ann", { agent: "Silent", name });
  await until("the state is there", () => ann.state);
  expect("state", ann.state, count(0));
  expect("identified", ann.identified, false);
}

async function no_protocol(name) {
  const ann = connect("ann", { name, query: { mode: "plain" } });
  const bob = await connected("bob", { name });
  expect("call", await ann.call("add", [2, 3]), 5);
  bob.setState(count(1));
  await settled(bob, ann);
  await bob.call("announce", ["news"]);
  await settled(ann);
  expect("announced", ann.others, [{ announced: "news" }]);
  expect("updates", ann.updates, []);
}

async function state(name) {
  const ann = await connected("ann", { name });
  const bob = await connected("bob", { name });
  ann.setState(count(1));
  await until("bob knows", () => bob.state.count === 1);
  bob.setState(count(2));
  await until("ann knows", () => ann.state.count === 2);
  await settled(ann, bob);
  expect("ann was told", ann.updates, [[count(0), "server"], [count(1), "client"], [count(2), "server"]]);
  expect("bob was told", bob.updates, [[count(0), "server"], [count(1), "server"], [count(2), "client"]]);
  expect("bump", await ann.call("bump"), 3);
  await settled(ann, bob);
  expect("both know", [ann.state, bob.state], [count(3), count(3)]);
  const cat = await connected("cat", { name });
  expect("a latecomer knows", cat.state, count(3));
  for (const value of [[1, "two", null, { é: "日本" }], "text", 0, false]) {
    ann.setState(value);
    await until("bob knows", () => JSON.stringify(bob.state) === JSON.stringify(value));
  }
}

async function null_state(name) {
  const ann = await connected("ann", { name });
  const bob = await connected("bob", { name });
  ann.setState(null);
  await settled(ann, bob);
  expect("the other", bob.state, null);
  const cat = connect("cat", { name });
  await until("cat is identified", () => cat.identified, 1000).catch(() => {});
  expect("a latecomer", [cat.identified, cat.updates], [true, [[null, "server"]]]);
}

async function twins(name) {
  const ann = await connected("ann", { name, id: "twin" });
  const bob = await connected("bob", { name, id: "twin" });
  ann.setState(count(1));
  await settled(ann);
  await until("bob knows", () => bob.state.count === 1, 1000).catch(() => {});
  expect("the other one knows", bob.state, count(1));
  expect("the sender is not told", ann.updates, [[count(0), "server"], [count(1), "client"]]);
}

async function state_refused(name) {
  const ann = await connected("ann", { name });
  const bob = await connected("bob", { name, query: { mode: "readonly" } });
  ann.setState(count(-1));
  bob.setState(count(7));
  await settled(ann, bob);
  expect("invalid", ann.errors, ["State update rejected"]);
  expect("readonly", bob.errors, ["Connection is readonly"]);
  expect("kept by the client that sent it", ann.state, count(-1));
  const cat = await connected("cat", { name });
  expect("a latecomer", cat.state, count(0));
}

async function rpc(name) {
  const ann = await connected("ann", { name });
  expect("plain", await ann.call("add", [2, 3]), 5);
  expect("by the stub", await ann.stub.add(1, 1), 2);
  expect("void", await outcome(ann.call("nothing")), "nothing");
  const values = [null, true, 0.5, -1, "é 日本 \u2028 \"\\", [], {}, { a: [{ b: null }] }, 9007199254740991];
  expect("values", await ann.call("echo", values), values);
  expect("no arguments", await ann.call("echo"), []);
  const many = await Promise.all(Array.from({ length: 20 }, (_, n) => ann.call("add", [n, 1])));
  expect("twenty at once", many, Array.from({ length: 20 }, (_, n) => n + 1));
}

async function rpc_refused(name) {
  const ann = await connected("ann", { name });
  expect("raises", await outcome(ann.call("boom")), { error: "boom!" });
  expect("unknown", await outcome(ann.call("missing")), { error: "Method missing does not exist" });
  expect("hidden", await outcome(ann.call("hidden")), { error: "Method hidden is not callable" });
  expect("of the framework", await outcome(ann.call("broadcast", ["x"])), { error: "Method broadcast is not callable" });
  expect("of the language", "error" in (await outcome(ann.call("__init__"))), true);
  const { error } = await outcome(ann.call("unserializable"));
  expect("no JSON", error?.startsWith("Internal error (reference "), true);
  await outcome(ann.call("add", [1]));
  await outcome(ann.call("add", ["1", "2"]));
  expect("afterwards", await ann.call("add", [2, 3]), 5);
}

async function unpaired(name) {
  const ann = await connected("ann", { name });
  const answer = await outcome(ann.call("echo", ["a\ud800b"], { timeout: 1000 }));
  expect("answer", answer, { result: ["a\ufffdb"] });
  expect("afterwards", await ann.call("add", [2, 3]), 5);
}

async function stream(name) {
  const ann = await connected("ann", { name });
  const streamed = async (method, n) => {
    const told = [];
    const onChunk = (chunk) => told.push(chunk);
    const stream = { onChunk, onDone: () => told.push("done"), onError: (error) => told.push({ error }) };
    return [told, await outcome(ann.call(method, n === undefined ? [] : [n], { stream }))];
  };
  expect("three", await streamed("numbers", 3), [[0, 1, 2, "done"], "nothing"]);
  expect("none", await streamed("numbers", 0), [["done"], "nothing"]);
  const broken = [[0, 1, { error: "out of numbers" }], { error: "out of numbers" }];
  expect("broken", await streamed("broken_numbers", 2), broken);
  expect("without asking for a stream", await outcome(ann.call("numbers", [2])), "nothing");
  expect("asking a plain method", await streamed("nothing"), [["done"], "nothing"]);
}

async function broadcast(name) {
  const ann = await connected("ann", { name });
  const bob = await connected("bob", { name });
  await ann.call("announce", [{ text: "hear" }]);
  await settled(ann, bob);
  expect("everybody heard", [ann.others, bob.others], [[{ announced: { text: "hear" } }], [{ announced: { text: "hear" } }]]);
}

async function sub(name) {
  const root = await connected("root", { name });
  const path = "sub/desk/d/sub/reporter/r/sub/source/s";
  const ann = await connected("ann", { name, path });
  const bob = await connected("bob", { name, path });
  expect("identity", [ann.name, ann.agent], ["s", "source"]);
  expect("path", await ann.call("path"), [name, "d", "r", "s"]);
  ann.setState(count(1));
  await until("bob knows", () => bob.state.count === 1);
  expect("bump", await bob.call("bump"), 2);
  await until("ann knows", () => ann.state.count === 2);
  await settled(root);
  expect("the root is not told", root.updates, [[count(0), "server"]]);
  const desk = await connected("desk", { name, path: "sub/desk/d" });
  expect("nor the child above", desk.state, count(0));
  const streamed = [];
  await ann.call("numbers", [2], { stream: { onChunk: (chunk) => streamed.push(chunk) } });
  expect("a stream from below", streamed, [0, 1]);
  expect("an error from below", await outcome(ann.call("boom")), { error: "boom!" });
  expect("with a path of its own", (await connected("leaf", { name, path: "sub/desk/d/some/where" })).name, "d");
}

async function root_names() {
  for (const name of ["100%", "a b", "zürich", "a%2Fb", "sub", "a+b", "A~b.c_d", "a;b=c", "a'b(c)", "50%25", "a%00b"]) {
    const ann = await connected(name, { name });
    expect(name, [ann.name, await ann.call("path")], [new URL(`http://h/${name}`).pathname.slice(1), [ann.name]]);
  }
  const ann = await connected("a/b", { name: "a/b", disableNameValidation: true });
  expect("a/b", [ann.name, await ann.call("path")], ["a", ["a"]]);
}

async function child_names(name) {
  for (const child of ["a/b", "50%", "日本 é", "%2F", "a b", "sub", "a\\b", "😀", "?q#h", "'", "x".repeat(200)]) {
    const ann = await connected(child, { name, path: `sub/desk/${encodeURIComponent(child)}` });
    expect(child, [ann.name, await ann.call("path")], [child, [name, child]]);
  }
  const ann = await connected("under sub", { name: "sub", path: "sub/desk/sub/sub/desk/sub" });
  expect("under sub", await ann.call("path"), ["sub", "sub", "sub"]);
  expect("undecodable", await ends("undecodable", { name, path: "sub/desk/%ff" }), true);
}

async function malformed(name) {
  const ann = await connected("ann", { name });
  const frames = [
    "not json",
    "",
    "null",
    "[]",
    "3",
    '"rpc"',
    "{}",
    '{"type":"rpc"}',
    '{"type":"rpc","id":1,"method":"add","args":[1,2]}',
    '{"type":"rpc","id":"x","method":"add"}',
    '{"type":"rpc","id":"x","method":"add","args":{}}',
    '{"type":"rpc","id":"x","method":3,"args":[]}',
    '{"type":"cf_agent_state"}',
    '{"type":"cf_agent_identity","name":"x","agent":"y"}',
    '{"type":"unknown","id":"x"}',
    '{"type":"rpc","id":"x","method":"add","args":[1,2]',
    ' \n{"type":"rpc","id":"spaced","method":"add","args":[1,2]}\n',
    '{"type":"rpc","id":"","method":"add","args":[1,2]}',
    '{"type":"rpc","id":"twice","id":"second","method":"add","args":[1,2]}',
    '{"\\u0074ype":"rpc","id":"escaped","method":"add","args":[1,2]}',
    '{"type":"rpc","id":"more","method":"add","args":[1,2],"other":[1,{"a":2}]}',
    '{"type":"cf_agent_state","state":{"count":5},"other":1}',
    " ".repeat(3),
    "[".repeat(2000),
  ];
  for (const frame of frames) {
    ann.send(frame);
    await settled(ann);
  }
  ann.send(new Uint8Array([1, 2, 255]));
  ann.send(new Uint8Array([]));
  ann.send(new TextEncoder().encode('{"type":"rpc","id":"binary","method":"add","args":[1,2]}'));
  await settled(ann);
  expect("still here", [await ann.call("add", [2, 3]), ann.closes], [5, []]);
}

async function refused(name) {
  for (const [child, code] of [["forbidden", 4403], ["missing", 4404]]) {
    const ann = connect(child, { name, path: `sub/desk/${child}` });
    const waiting = outcome(ann.call("add", [1, 2]));
    await until("it gives up", () => ann.connectionError);
    const reason = `Sub-agent connection rejected (${code - 4000})`;
    expect(child, [ann.connectionError.code, ann.connectionError.reason], [code, reason]);
    expect(`${child}: a call that waited`, await waiting, { error: "Connection closed" });
    expect(`${child}: a later call`, await outcome(ann.call("add", [1, 2])), { error: "Connection closed" });
    await sleep(400);
    expect(`${child}: closed for good`, [ann.closes.length, ann.shouldReconnect], [1, false]);
  }
  const deep = connect("deep", { name, path: "sub/desk/d/sub/reporter/missing" });
  await until("it gives up", () => deep.connectionError, 1000).catch(() => {});
  expect("deep", deep.connectionError?.code ?? null, 4404);
  const broken = connect("broken", { name, path: "sub/desk/broken" });
  await until("it comes back", () => broken.closes.length > 1);
  expect("broken", [broken.closes[0], broken.connectionError], ["1011 Sub-agent connection rejected (500)", null]);
  broken.close();
  expect("busy", await ends("busy", { name, path: "sub/desk/busy" }), false);
  expect("down", await ends("down", { name, path: "sub/desk/down" }), false);
}

async function hooks_fail(name) {
  const ann = connect("ann", { name, query: { mode: "fails" } });
  await until("it comes back", () => ann.closes.length > 1, 2000).catch(() => {});
  const reason = ann.closes[0]?.replace(/reference [0-9a-f]{8}/, "reference …") ?? null;
  expect("on_connect", reason, "1011 Internal error (reference …).");
  const cat = connect("cat", { name, query: { mode: "closed" } });
  await until("it gives up", () => cat.connectionError, 1000).catch(() => {});
  expect("closed in on_connect", [cat.connectionError?.code ?? null, cat.others], [4002, [{ announced: "not you" }]]);
  const bob = await connected("bob", { name });
  bob.send("fail");
  await settled(bob);
  expect("on_message", [await bob.call("add", [2, 3]), bob.closes], [5, []]);
}

/** Whether a client that is not let in knows it, or tries for ever. */
async function ends(label, options) {
  const client = connect(label, options);
  await until("it is closed", () => client.closes.length || client.identified);
  await until("it gives up", () => client.connectionError, 700).catch(() => {});
  const given_up = client.connectionError !== null;
  client.close();
  return given_up;
}

async function not_found(name) {
  expect("closed", await ends("closed", { name: "closed" }), true);
  expect("unknown class", await ends("unknown class", { agent: "Nobody", name }), true);
  expect("unknown child", await ends("unknown child", { name, path: "sub/nobody/x" }), true);
  expect("elsewhere", await ends("elsewhere", { basePath: "elsewhere/room/x" }), true);
  expect("too short", await ends("too short", { basePath: "agents/room" }), true);
  expect("null in a child", await ends("null in a child", { name, path: "sub/desk/a%00b" }), true);
}

async function kicked(name) {
  for (const code of [4001, 1008]) {
    const ann = await connected(`${code}`, { name: `${name}-${code}` });
    const answer = outcome(ann.call("kick", [code, "go away"]));
    await until("it gives up", () => ann.connectionError);
    expect(`${code}`, [ann.connectionError.code, ann.connectionError.reason], [code, "go away"]);
    await answer;
  }
  const ann = await connected("1000", { name: `${name}-1000` });
  await outcome(ann.call("kick", [1000, "come back"]));
  await until("it comes back", () => ann.closes.length && ann.identified);
  expect("1000", [ann.closes, ann.connectionError], [["1000 come back"], null]);
}

async function deleted(name) {
  const root = await connected("root", { name });
  const ann = await connected("ann", { name, path: "sub/desk/d" });
  ann.setState(count(1));
  await settled(ann);
  await root.call("drop", ["d"]);
  await until("it comes back", () => ann.closes.length && ann.identified);
  expect("closed", ann.closes, ["1001 Sub-agent deleted"]);
  expect("made anew", ann.state, count(0));
}

async function destroyed(name) {
  const ann = await connected("ann", { name });
  const bob = await connected("bob", { name, path: "sub/desk/d" });
  ann.setState(count(1));
  await settled(ann);
  await outcome(ann.call("end"));
  await until("both come back", () => [ann, bob].every((client) => client.closes.length && client.identified));
  expect("closed", [ann.closes[0], bob.closes[0]], ["1001 Agent destroyed", "1001 Agent destroyed"]);
  expect("made anew", [ann.state, bob.state], [count(0), count(0)]);
}

async function big(name) {
  const ann = await connected("ann", { name });
  const text = "é".repeat(100_000);
  expect("echoed", (await ann.call("echo", [text]))[0] === text, true);
}

async function http(name) {
  const ask = async (options, init) => {
    const answer = await agentFetch({ agent: "Room", name, host, ...options }, init);
    const text = await answer.text();
    return { status: answer.status, text: text.startsWith("{") ? JSON.parse(text) : text };
  };
  const about = (method, path, body, who) => ({ status: 200, text: { method, path, body, name: who } });
  expect("get", await ask({}), about("GET", "/", "", name));
  expect("post", await ask({ path: "a/b%20c" }, { method: "POST", body: "é" }), about("POST", "/a/b%20c", "é", name));
  const child = `sub/desk/${encodeURIComponent("d/1")}`;
  expect("child", await ask({ path: `${child}/leaf` }), about("GET", "/leaf", "", "d/1"));
  expect("refused", await ask({ path: "sub/desk/missing" }), { status: 404, text: "no" });
  expect("unknown class", await ask({ agent: "Nobody" }), { status: 400, text: "Invalid request" });
  expect("elsewhere", await ask({ basePath: "elsewhere" }), { status: 404, text: "Not Found" });
  expect("too short", await ask({ basePath: "agents/room" }), { status: 404, text: "Not Found" });
  expect("no answer", (await ask({ agent: "Plain" })).status, 404);
  expect("null in a child", (await ask({ path: "sub/desk/a%00b" })).status, 400);
}

async function killed(name) {
  await comes_back(name, "kill");
}

async function stopped(name) {
  await comes_back(name, "stop");
}

async function comes_back(name, how) {
  const ann = await connected("ann", { name });
  const bob = await connected("bob", { name, path: "sub/desk/d" });
  ann.setState(count(4));
  bob.setState(count(1));
  await settled(ann, bob);
  const again = restart(how);
  await until("it is closed", () => ann.closes.length && bob.closes.length, 10_000);
  const waiting = outcome(ann.call("add", [2, 3]));
  await again;
  expect("a call made meanwhile", await waiting, { result: 5 });
  await ann.ready;
  await bob.ready;
  expect("the state", [ann.state, bob.state], [count(4), count(1)]);
  expect("the same clients", [ann.name, bob.name, ann.connectionError], [name, "d", null]);
}

const scenarios = {
  ...{ identity, no_state, no_identity, no_protocol, state, null_state, twins, state_refused },
  ...{ rpc, rpc_refused, unpaired, stream, broadcast, sub, root_names, child_names, malformed },
  ...{ refused, hooks_fail, not_found, kicked, deleted, destroyed, big, http, killed, stopped },
};
await run(scenarios, { end });

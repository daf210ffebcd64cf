// What the unmodified useAgent of `agents/react` does with a server, rendered in jsdom.
import { JSDOM } from "jsdom";
import { expect, host, outcome, recorded, restart, run, sleep, until } from "./recording.mjs";

const { window } = new JSDOM("<!doctype html>", { url: `http://${host}/` });
Object.assign(globalThis, { window, document: window.document });
const { createElement } = await import("react");
const { createRoot } = await import("react-dom/client");
const { useAgent } = await import("agents/react");

const QUICK = { minReconnectionDelay: 50, maxReconnectionDelay: 300, minUptime: 100 };
const roots = [];

/** Render a component that uses an agent; what it has at its last rendering is in `hook.agent`. */
function render(label, options) {
  const hook = { updates: [], errors: [], connectionErrors: [], mcp: 0 };
  const socket = recorded(label);
  const Component = () => {
    hook.agent = useAgent({
      ...{ agent: "Room", host, WebSocket: socket, ...QUICK, ...options },
      onStateUpdate: (state, source) => hook.updates.push([state, source]),
      onStateUpdateError: (error) => hook.errors.push(error),
      onConnectionError: (error) => hook.connectionErrors.push([error.code, error.reason]),
      onMcpUpdate: () => (hook.mcp += 1),
    });
    hook.state = hook.agent.state;
    return null;
  };
  const root = createRoot(document.body.appendChild(document.createElement("div")));
  root.render(createElement(Component));
  roots.push(root);
  return hook;
}

async function rendered(label, options) {
  const hook = render(label, options);
  await until("it is identified", () => hook.agent?.identified);
  return hook;
}

async function end() {
  for (const root of roots.splice(0)) root.unmount();
}

const count = (n) => ({ count: n });

async function hook_identity(name) {
  const ann = await rendered("ann", { name });
  await ann.agent.ready;
  expect("identity", [ann.agent.name, ann.agent.agent], [name, "room"]);
  await until("the state is rendered", () => ann.state);
  expect("state", ann.state, count(0));
  await until("MCP servers are known", () => ann.mcp);
}

async function hook_state(name) {
  const ann = await rendered("ann", { name });
  const bob = await rendered("bob", { name });
  ann.agent.setState(count(1));
  await until("bob shows it", () => bob.state?.count === 1);
  bob.agent.setState(count(2));
  await until("ann shows it", () => ann.state?.count === 2);
  expect("ann was told", ann.updates, [[count(0), "server"], [count(1), "client"], [count(2), "server"]]);
  ann.agent.setState(count(-1));
  await until("it is refused", () => ann.errors.length);
  expect("refused", ann.errors, ["State update rejected"]);
}

async function hook_rpc(name) {
  const ann = await rendered("ann", { name });
  expect("call", await ann.agent.call("add", [2, 3]), 5);
  expect("stub", await ann.agent.stub.add(1, 1), 2);
  expect("error", await outcome(ann.agent.call("boom")), { error: "boom!" });
  const chunks = [];
  await ann.agent.call("numbers", [3], { stream: { onChunk: (chunk) => chunks.push(chunk) } });
  expect("stream", chunks, [0, 1, 2]);
}

async function hook_sub(name) {
  const sub = [
    { agent: "Desk", name: "a/b" },
    { agent: "Reporter", name: "50%" },
    { agent: "Source", name: "日本 é" },
  ];
  const ann = await rendered("ann", { name, sub });
  const bob = await rendered("bob", { name, sub });
  expect("identity", [ann.agent.name, ann.agent.agent], ["日本 é", "source"]);
  expect("path", await ann.agent.call("path"), [name, "a/b", "50%", "日本 é"]);
  ann.agent.setState(count(1));
  await until("bob shows it", () => bob.state?.count === 1);
  const [url] = ann.agent.getHttpUrl().split("?");
  expect("url", url.replace(host, "host"), `http://host/agents/room/${name}/sub/desk/a%2Fb/sub/reporter/50%25/sub/source/${encodeURIComponent("日本 é")}`);
  expect("its answer", (await (await fetch(`${url}/leaf`)).json()).name, "日本 é");
}

async function hook_refused(name) {
  const ann = render("ann", { name, sub: [{ agent: "Desk", name: "missing" }] });
  await until("it gives up", () => ann.agent?.connectionError);
  const wanted = [4404, "Sub-agent connection rejected (404)"];
  expect("connectionError", [ann.agent.connectionError.code, ann.agent.connectionError.reason], wanted);
  expect("told", ann.connectionErrors, [wanted]);
  expect("a call", await outcome(ann.agent.call("add", [1, 2])), { error: "Connection closed" });
  await sleep(400);
}

async function hook_restart(name) {
  const ann = await rendered("ann", { name });
  const bob = await rendered("bob", { name, sub: [{ agent: "Desk", name: "d" }] });
  ann.agent.setState(count(4));
  await ann.agent.call("nothing");
  await restart("kill");
  await until("both are back", () => ann.updates.length > 2 && bob.updates.length > 1, 10_000);
  expect("the state", [ann.state, bob.state], [count(4), count(0)]);
  expect("a call", await ann.agent.call("add", [2, 3]), 5);
}

await run({ hook_identity, hook_state, hook_rpc, hook_sub, hook_refused, hook_restart }, { end });

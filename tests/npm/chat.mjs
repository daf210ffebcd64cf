// What the unmodified useAgentChat does with a server, rendered in jsdom. Every scenario ends with tabs that show exactly
// what is stored: `node chat.mjs HOST MAJOR together|alone [SCENARIO]…`, where MAJOR is the AI SDK's.
import { JSDOM } from "jsdom";
import { expect, host, recorded, restart, run, scenario, sleep, until } from "./recording.mjs";

const major = process.argv[3];
const { window } = new JSDOM("<!doctype html>", { url: `http://${host}/` });
Object.assign(globalThis, { window, document: window.document });

const QUICK = { minReconnectionDelay: 50, maxReconnectionDelay: 300, minUptime: 100 };
const SETTLED = 300;
let opened = 0;

const TIMES = { UTC: "12:00", CET: "13:00" };
const TOOLS = {
  getTime: {
    description: "What time it is",
    parameters: { type: "object", properties: { zone: { type: "string" } }, required: ["zone"] },
    execute: async ({ zone }) => TIMES[zone],
  },
};
/** A tab that runs the client's tools. */
const RUNS = {
  tools: TOOLS,
  onToolCall: async ({ toolCall, addToolOutput }) =>
    addToolOutput({ toolCallId: toolCall.toolCallId, output: TIMES[toolCall.input.zone] }),
};

/** Open a tab: its own copy of every module, as a reload has. What it shows is in `tab.chat`. */
async function open(label, name, { agent = "Chat", ...options } = {}) {
  const { createElement, createRoot, Suspense, useAgent, useAgentChat } = await import(`./made/hooks-${major}.mjs?${++opened}`);
  const tabs = (scenario().tabs ??= []);
  const { clients } = scenario();
  const tab = { label, agentClass: agent, name, shown: [], ends: [], sockets: recorded(label), socketsMade: () => clients[label] };
  const Component = () => {
    tab.agent = useAgent({ agent, name, host, WebSocket: tab.sockets, ...QUICK });
    tab.chat = useAgentChat({ agent: tab.agent, ...options, onTurnEnd: (end) => tab.ends.push(end) });
    tab.shown.push(plain(tab.chat.messages));
    return null;
  };
  const root = createRoot(document.body.appendChild(document.createElement("div")));
  root.render(createElement(Suspense, { fallback: null }, createElement(Component)));
  tab.close = () => {
    tabs.splice(tabs.indexOf(tab), 1);
    root.unmount();
  };
  tabs.push(tab);
  await until(`${label} is there`, () => tab.chat && tab.agent.identified);
  // The conversation comes after the identity: until then it takes away what the tab has said meanwhile.
  await heard(tab);
  return tab;
}

async function end({ tabs = [] }) {
  for (const tab of [...tabs]) tab.close();
}

/** What JSON has of messages. A tab that watches adds the name of a tool, which its type says already. */
const plain = (messages) => JSON.parse(JSON.stringify(messages, (key, value) => (key === "toolName" ? undefined : value)));
const texts = (message) => message.parts.filter((part) => part.type === "text").map((part) => part.text).join("");
const last = (tab) => tab.chat.messages.at(-1);
const roles = (messages) => messages.map(({ role }) => role[0]).join("");
const isIdle = ({ chat }) => !["streaming", "submitted"].includes(chat.status) && !chat.isStreaming && !chat.isToolContinuation;
const count = (message) => (message ? (texts(message).match(/[a-z]\d+/g) ?? []).length : 0);
const lives = (message) => (message ? (texts(message).match(/\[life \d+\]/g) ?? []) : []);
const requests = (tab) => tab.socketsMade().flatMap(({ sent }) => sent).filter(({ type, long }) => type === "cf_agent_use_chat_request" || long).length;

/** Have a tab ask for something, and return when it has. */
async function asks(tab, ask) {
  const before = requests(tab);
  void ask(tab.chat);
  await until(`${tab.label} has asked`, () => requests(tab) > before);
}

const say = (tab, text) => asks(tab, (chat) => chat.sendMessage({ text }));

/** Return when the server has heard all that a tab has sent. */
const heard = (tab) => tab.agent.call("is_idle");

/** Let the model go on that waits after this word. */
async function letGo({ agentClass, name }, word) {
  await fetch(`http://${host}/agents/${agentClass.toLowerCase()}/${name}/go-on/${word}`, { method: "POST" });
}

async function stored({ agentClass, name }) {
  return (await fetch(`http://${host}/agents/${agentClass.toLowerCase()}/${name}/get-messages`)).json();
}

/** Wait until the server has stored so many answers. */
async function ended(tab, answers) {
  while ((await stored(tab)).filter(({ role }) => role === "assistant").length < answers) await sleep(25);
}

/** Wait until a tab shows so many words of an answer, the last of so many messages. */
async function midway(tab, words, messages) {
  const isSo = () => last(tab)?.role === "assistant" && count(last(tab)) >= words;
  await until(`${tab.label} shows ${words} words`, () => isSo() && (!messages || tab.chat.messages.length === messages));
}

/** Wait until the server has nothing to do, everybody has heard what it said, and nothing streams, for a while. */
async function quiet(all, patience = 60_000) {
  let since = null;
  for (const end = Date.now() + patience; Date.now() < end; await sleep(25)) {
    const isSo = all.every(isIdle) && (await Promise.all(all.map(heard))).every(Boolean) && all.every(isIdle);
    since = isSo ? (since ?? Date.now()) : null;
    if (isSo && Date.now() - since >= SETTLED) return;
  }
}

/** Wait until all is quiet, then hold every tab to what is stored; return that. */
async function agree(what, ...all) {
  await quiet(all);
  const busy = all.filter((tab) => !isIdle(tab)).map(({ label, chat }) => [label, chat.status, chat.isServerStreaming, chat.isToolContinuation]);
  expect(`${what}: all is quiet`, busy, []);
  const messages = await stored(all[0]);
  scenario().stored = { agent: all[0].agentClass, name: all[0].name, messages };
  for (const tab of all) {
    expect(`${what}: ${tab.label} has no error`, tab.chat.error?.message ?? null, tab.fails ?? null);
    expect(`${what}: ${tab.label} shows what is stored`, plain(tab.chat.messages), messages, { quietly: true });
  }
  const ids = messages.map(({ id }) => id);
  expect(`${what}: no message is there twice`, ids.length, new Set(ids).size);
  return messages;
}

/** Hold a tab to this: at no moment it showed an answer that is not how the final one begins, and none twice. */
function grew(what, tab, messages, { from = 0 } = {}) {
  const final = new Map(messages.map((message) => [message.id, texts(message)]));
  const odd = [];
  for (const shown of tab.shown.slice(from)) {
    for (const message of shown) {
      if (message.role !== "assistant" || final.get(message.id)?.startsWith(texts(message))) continue;
      odd.push([message.id, texts(message), final.get(message.id) ?? null]);
    }
  }
  expect(`${what}: ${tab.label} never showed anything else`, odd.slice(0, 2), []);
}

/** Return the words of an answer, checked: each once, in order, of one process. */
function whole(what, message, words, word = "w") {
  const said = texts(message);
  expect(`${what}: one process said it`, new Set(lives(message)).size, 1);
  const wanted = Array.from({ length: words }, (_, at) => `${word}${at}`).join(" ");
  expect(`${what}: all words`, said.replace(/\[life \d+\] ?/g, ""), wanted);
}

/** Have the server killed and started again; return when these tabs show that another process goes on. */
async function killAndGoOn(...all) {
  const before = all.map((tab) => lives(last(tab)));
  await restart("kill");
  for (const [at, tab] of all.entries())
    await until(`${tab.label} goes on`, () => lives(last(tab)).some((life) => !before[at].includes(life)));
}

async function send(name) {
  const ann = await open("ann", name);
  await say(ann, "say 20 5 @w2 @w6 @w12");
  for (const word of [2, 6, 12]) {
    await midway(ann, word + 1);
    // The client changes a message before React draws it: on a busy machine the next words may come between the two.
    await until(`ann has drawn ${word + 1} words`, () => ann.shown.some((shown) => count(shown[1]) === word + 1));
    expect(`status at ${word}`, ann.chat.status, "streaming");
    await letGo(ann, `w${word}`);
  }
  const messages = await agree("after", ann);
  expect("roles", roles(messages), "ua");
  whole("answer", messages[1], 20);
  grew("after", ann, messages);
  const counts = new Set(ann.shown.map((shown) => count(shown[1])));
  expect("lengths it never had", [3, 7, 13, 20].filter((words) => !counts.has(words)), []);
  expect("how it ended", ann.ends.map(({ outcome, messageIds }) => [outcome, messageIds]), [["completed", [messages[0].id]]], { quietly: true });
  await say(ann, "say 3 5");
  const more = await agree("second", ann);
  expect("roles again", roles(more), "uaua");
  whole("second answer", more[3], 3);
}

async function two_tabs(name) {
  const ann = await open("ann", name);
  const bob = await open("bob", name);
  await say(ann, "say 20 5 @w4");
  await midway(bob, 5);
  await midway(ann, 5);
  await letGo(ann, "w4");
  const messages = await agree("first", ann, bob);
  whole("answer", messages[1], 20);
  grew("first", ann, messages);
  grew("first", bob, messages);
  await say(bob, "look 20 5 @b4");
  await midway(ann, 8, 4);
  await midway(bob, 8, 4);
  await letGo(ann, "b4");
  const more = await agree("second", ann, bob);
  expect("roles", roles(more), "uaua");
  grew("second", ann, more);
  grew("second", bob, more);
  const cat = await open("cat", name);
  await agree("a third tab", ann, bob, cat);
}

async function reload(name) {
  const ann = await open("ann", name);
  await say(ann, "say 60 5 @w4 @w19 @w34");
  await midway(ann, 5);
  ann.close();
  const second = await open("ann again", name);
  await midway(second, 5);
  await letGo(ann, "w4");
  await midway(second, 20);
  second.close();
  const third = await open("ann for the third time", name);
  await midway(third, 20);
  await letGo(ann, "w19");
  await midway(third, 35);
  await letGo(ann, "w34");
  const messages = await agree("after", third);
  whole("answer", messages[1], 60);
  grew("after", second, messages);
  grew("after", third, messages);
}

async function reload_at_once(name) {
  const ann = await open("ann", name);
  await say(ann, "say 20 5");
  ann.close();
  const again = await open("ann again", name);
  const messages = await agree("after", again);
  whole("answer", messages[1], 20);
}

async function reload_between_steps(name) {
  const ann = await open("ann", name);
  await say(ann, "look 40 5 @b4");
  await midway(ann, 8);
  ann.close();
  const again = await open("ann again", name);
  await midway(again, 8);
  await letGo(ann, "b4");
  const messages = await agree("after", again);
  grew("after", again, messages);
  expect("words", count(messages[1]), 43);
}

async function dropped(name) {
  const ann = await open("ann", name);
  const bob = await open("bob", name);
  await say(ann, "say 60 5 @w4 @w19 @w39");
  for (const word of [4, 19, 39]) {
    await midway(ann, word + 1);
    await midway(bob, word + 1);
    ann.agent.reconnect();
    bob.agent.reconnect();
    await letGo(ann, `w${word}`);
  }
  const messages = await agree("after", ann, bob);
  whole("answer", messages[1], 60);
}

async function killed(name) {
  const ann = await open("ann", name);
  const bob = await open("bob", name);
  await say(ann, "say 30 5 @w9");
  await midway(ann, 10);
  await midway(bob, 10);
  await killAndGoOn(ann, bob);
  await letGo(ann, "w9");
  const messages = await agree("after", ann, bob);
  expect("roles", roles(messages), "ua");
  whole("answer", messages[1], 30);
  await say(bob, "say 3 5");
  expect("roles again", roles(await agree("next", ann, bob)), "uaua");
}

async function killed_in_the_second_step(name) {
  const ann = await open("ann", name);
  await say(ann, "look 30 5 @b8");
  await midway(ann, 12);
  const [before] = lives(last(ann));
  await killAndGoOn(ann);
  await letGo(ann, "b8");
  const messages = await agree("after", ann);
  const [first, second] = messages[1].parts.filter((part) => part.type === "text");
  expect("the first step is kept", first.text, `${before} a0 a1 a2`, { quietly: true });
  expect("the second is said again", second.text.startsWith(before), false);
  expect("words", count(messages[1]), 33);
  expect("tool", messages[1].parts.filter((part) => part.type === "tool-look").map(({ state, output }) => [state, output]), [["output-available", "it is fine"]]);
}

async function killed_and_reloaded(name) {
  const ann = await open("ann", name);
  await say(ann, "say 40 5 @w9");
  await midway(ann, 10);
  await restart("kill");
  ann.close();
  const again = await open("ann again", name);
  await midway(again, 10);
  await letGo(ann, "w9");
  const messages = await agree("after", again);
  whole("answer", messages[1], 40);
  grew("after", again, messages);
}

async function killed_over_and_over(name) {
  const ann = await open("ann", name);
  await say(ann, "say 30 5 @w4 @w14");
  await midway(ann, 5);
  await killAndGoOn(ann);
  await letGo(ann, "w4");
  await midway(ann, 15);
  await killAndGoOn(ann);
  await letGo(ann, "w4");
  await midway(ann, 15);
  await letGo(ann, "w14");
  const messages = await agree("after", ann);
  expect("roles", roles(messages), "ua");
  whole("answer", messages[1], 30);
}

async function stop(name) {
  const ann = await open("ann", name);
  const bob = await open("bob", name);
  await say(ann, "say 200 5 @w9");
  await midway(ann, 10);
  await midway(bob, 10);
  await ann.chat.stop();
  const messages = await agree("after", ann, bob);
  expect("what was said is kept", count(messages[1]), 10);
  expect("how it ended", ann.ends.concat(bob.ends).map(({ outcome }) => outcome), ["aborted", "aborted"]);
  await say(ann, "say 5 5");
  const more = await agree("next", ann, bob);
  expect("roles", roles(more), "uaua");
  whole("next answer", more[3], 5);
}

async function stop_by_another(name) {
  const ann = await open("ann", name);
  const bob = await open("bob", name);
  await say(ann, "say 200 5 @w9");
  await midway(bob, 10);
  bob.close();
  const again = await open("bob again", name);
  await midway(again, 10);
  await again.chat.stop();
  const messages = await agree("after", ann, again);
  expect("what was said is kept", count(messages[1]), 10);
}

async function clear(name) {
  const ann = await open("ann", name);
  const bob = await open("bob", name);
  await say(ann, "say 5 5");
  await agree("before", ann, bob);
  ann.chat.clearHistory();
  await until("bob shows nothing", () => bob.chat.messages.length === 0);
  expect("nothing is left", await agree("after", ann, bob), []);
  await say(bob, "say 5 5");
  const messages = await agree("anew", ann, bob);
  expect("roles", roles(messages), "ua");
}

async function clear_midway(name) {
  const ann = await open("ann", name);
  const bob = await open("bob", name);
  await say(ann, "say 200 5 @w9");
  await midway(bob, 10);
  bob.chat.clearHistory();
  expect("nothing is left", await agree("after", ann, bob), []);
  await sleep(500);
  expect("nothing comes back", await agree("later", ann, bob), []);
  await say(ann, "say 5 5");
  const messages = await agree("anew", ann, bob);
  expect("roles", roles(messages), "ua");
  whole("answer", messages[1], 5);
}

async function regenerate(name) {
  const ann = await open("ann", name);
  const bob = await open("bob", name);
  await say(ann, "say 10 5");
  const before = await agree("before", ann, bob);
  await asks(ann, (chat) => chat.regenerate());
  const messages = await agree("after", ann, bob);
  expect("roles", roles(messages), "ua");
  expect("it is another answer", messages[1].id === before[1].id, false);
  whole("answer", messages[1], 10);
  await say(ann, "say 5 5");
  await agree("more", ann, bob);
  await asks(ann, (chat) => chat.regenerate({ messageId: messages[1].id }));
  const again = await agree("an earlier one", ann, bob);
  expect("what followed is gone", roles(again), "ua");
  expect("it is yet another", [before[1].id, messages[1].id].includes(again[1].id), false);
}

async function edited(name) {
  const ann = await open("ann", name);
  const bob = await open("bob", name);
  await say(ann, "say 10 5");
  const [first] = await agree("before", ann, bob);
  await say(ann, "say 5 5");
  await agree("more", ann, bob);
  await asks(ann, (chat) => chat.sendMessage({ text: "say 7 5", messageId: first.id }));
  const messages = await agree("after", ann, bob);
  expect("roles", roles(messages), "ua");
  expect("what is asked", texts(messages[0]), "say 7 5");
  whole("answer", messages[1], 7);
}

async function branched(name) {
  const ann = await open("ann", name);
  const bob = await open("bob", name);
  await say(ann, "say 10 5");
  const [question, first] = await agree("before", ann, bob);
  await asks(ann, (chat) => chat.regenerate());
  await agree("another answer", ann, bob);
  await asks(bob, (chat) => chat.regenerate());
  const [, third] = await agree("a third one", ann, bob);
  const answers = await ann.agent.call("branches");
  expect("three answers are siblings", answers.map(({ after, is_active }) => [after === question.id, is_active]), [[true, false], [true, false], [true, true]]);
  await ann.agent.call("switch", [first.id]);
  const switched = await agree("switched", ann, bob);
  expect("the first answer is shown", switched[1], first);
  await say(bob, "say 5 5");
  const more = await agree("continued", ann, bob);
  expect("it follows the first answer", [roles(more), more[1].id], ["uaua", first.id]);
  await asks(ann, (chat) => chat.sendMessage({ text: "say 7 5", messageId: more[2].id }));
  const edited = await agree("edited", ann, bob);
  expect("the edit is shown", [roles(edited), texts(edited[2])], ["uaua", "say 7 5"]);
  bob.close();
  const again = await open("bob again", name);
  expect("a tab that connects later sees the same", plain(again.chat.messages), edited);
  const old = (await ann.agent.call("branches")).find(({ text }) => text === "say 5 5");
  await again.agent.call("switch", [old.message_id]);
  const back = await agree("back", ann, again);
  expect("the old message is shown", [texts(back[2]), back[3]], ["say 5 5", more[3]]);
  await ann.agent.call("switch", [third.id]);
  await asks(again, (chat) => chat.regenerate());
  const last = await agree("a fourth answer", ann, again);
  expect("it is another answer", [roles(last), [first.id, third.id].includes(last[1].id)], ["ua", false]);
}

/** Have a tab say something that the server hears only when the turn is over and all messages were told. */
async function crossed(name, by) {
  const ann = await open("ann", name);
  const bob = await open("bob", name);
  const who = by === "bob" ? bob : ann;
  await say(ann, "say 10 5 @w4");
  await midway(ann, 5);
  await midway(bob, 5);
  who.sockets.held = [];
  await say(who, "say 20 5 @w6");
  await letGo(ann, "w4");
  await until("the first is over", () => ann.ends.length && bob.ends.length);
  who.sockets.release();
  await midway(ann, 7, 4);
  await midway(bob, 7, 4);
  expect("in the middle", [roles(ann.chat.messages), roles(bob.chat.messages)], ["uaua", "uaua"]);
  await letGo(ann, "w6");
  const messages = await agree("after", ann, bob);
  expect("roles", roles(messages), "uaua");
  whole("first answer", messages[1], 10);
  whole("second answer", messages[3], 20);
}

async function crossed_with_clear(name) {
  const ann = await open("ann", name);
  const bob = await open("bob", name);
  ann.sockets.held = [];
  await say(ann, "say 10 5 @w4");
  bob.chat.clearHistory();
  await until("ann shows nothing", () => ann.chat.messages.length === 0);
  ann.sockets.release();
  await midway(ann, 5, 2);
  await letGo(ann, "w4");
  const messages = await agree("after", ann, bob);
  expect("roles", roles(messages), "ua");
  whole("answer", messages[1], 10);
}

const toolParts = (message) => (message?.parts ?? []).filter(({ type }) => type.startsWith("tool-")).map(({ state, output }) => [state, output ?? null]);

async function client_tool(name) {
  const ann = await open("ann", name, RUNS);
  const bob = await open("bob", name);
  await say(ann, "time 20 5 @w4");
  await midway(ann, 5);
  await letGo(ann, "w4");
  const messages = await agree("after", ann, bob);
  expect("roles", roles(messages), "ua");
  expect("tool", toolParts(messages[1]), [["output-available", "12:00"]]);
  whole("answer", messages[1], 20);
}

async function client_tools(name) {
  const ann = await open("ann", name, RUNS);
  const bob = await open("bob", name);
  await say(ann, "times 20 5 @w4");
  await midway(ann, 5);
  await letGo(ann, "w4");
  const messages = await agree("after", ann, bob);
  expect("roles", roles(messages), "ua");
  expect("tools", toolParts(messages[1]), [["output-available", "12:00"], ["output-available", "13:00"]]);
  whole("answer", messages[1], 20);
}

async function client_tools_by_hand(name) {
  const ann = await open("ann", name, { body: { clientTools: [{ name: "getTime" }] } });
  await say(ann, "times 10 10");
  await until("both are asked for", () => isIdle(ann) && toolParts(last(ann)).length === 2);
  const [one, two] = last(ann).parts.filter(({ type }) => type === "tool-getTime");
  ann.chat.addToolOutput({ toolCallId: two.toolCallId, toolName: "getTime", output: "two" });
  await sleep(250);
  expect("it waits for the other", count(last(ann)), 0);
  ann.chat.addToolOutput({ toolCallId: one.toolCallId, toolName: "getTime", output: "one" });
  await midway(ann, 3);
  const messages = await agree("after", ann);
  expect("tools", toolParts(messages[1]), [["output-available", "one"], ["output-available", "two"]]);
  whole("answer", messages[1], 10);
}

async function client_tool_after_client_tool(name) {
  const ann = await open("ann", name, RUNS);
  const bob = await open("bob", name);
  await say(ann, "chain 10 5");
  await until("it is over", () => count(last(ann)) >= 10);
  const messages = await agree("after", ann, bob);
  expect("roles", roles(messages), "ua");
  expect("tools", toolParts(messages[1]), [["output-available", "12:00"], ["output-available", "13:00"]]);
  expect("text", texts(messages[1]).replace(/\[.*\]/, ""), "First.Second. w0 w1 w2 w3 w4 w5 w6 w7 w8 w9");
}

async function client_tool_fails(name) {
  const ann = await open("ann", name, { body: { clientTools: [{ name: "getTime" }] } });
  await say(ann, "time 10 10");
  await until("it is asked for", () => isIdle(ann) && toolParts(last(ann)).length === 1);
  const [part] = last(ann).parts.filter(({ type }) => type === "tool-getTime");
  ann.chat.addToolOutput({ toolCallId: part.toolCallId, toolName: "getTime", state: "output-error", errorText: "no clock" });
  await heard(ann);
  const again = await open("ann again", name);
  const messages = await agree("after", again);
  expect("it is stored", messages[1].parts.at(-1).errorText, "no clock");
  await say(again, "say 5 5");
  const more = await agree("next", again);
  expect("roles", roles(more), "uaua");
}

async function client_tool_reloaded(name) {
  const ann = await open("ann", name, RUNS);
  await say(ann, "time 40 5 @w9");
  await midway(ann, 10);
  ann.close();
  const again = await open("ann again", name, RUNS);
  await midway(again, 10);
  await letGo(ann, "w9");
  const messages = await agree("after", again);
  expect("roles", roles(messages), "ua");
  whole("answer", messages[1], 40);
}

async function client_tool_killed(name) {
  const ann = await open("ann", name, RUNS);
  await say(ann, "time 40 5 @w9");
  await midway(ann, 10);
  await killAndGoOn(ann);
  await letGo(ann, "w9");
  const messages = await agree("after", ann);
  expect("roles", roles(messages), "ua");
  whole("answer", messages[1], 40);
}

const requested = (tab) => (last(tab)?.parts ?? []).filter(({ state }) => state === "approval-requested");

async function approved(name) {
  const ann = await open("ann", name);
  const bob = await open("bob", name);
  await say(ann, "delete 20 5");
  await until("both are asked", () => isIdle(ann) && requested(ann).length && requested(bob).length);
  await agree("asked", ann, bob);
  ann.chat.addToolApprovalResponse({ id: requested(ann)[0].approval.id, approved: true });
  await midway(ann, 5);
  const messages = await agree("after", ann, bob);
  expect("roles", roles(messages), "ua");
  expect("tool", toolParts(messages[1]), [["output-available", "all is gone"]]);
  expect("words", count(messages[1]), 20);
}

/** Whoever approves asks late for what follows, and gets all of it nevertheless. */
async function approved_and_asked_late(name) {
  const ann = await open("ann", name);
  await say(ann, "delete 20 5 @w4");
  await until("ann is asked", () => isIdle(ann) && requested(ann).length);
  ann.chat.addToolApprovalResponse({ id: requested(ann)[0].approval.id, approved: true });
  ann.sockets.held = [];
  await until("ann asks for what follows", () => ann.sockets.held.length);
  await sleep(300);
  ann.sockets.release();
  await midway(ann, 5);
  await letGo(ann, "w4");
  const messages = await agree("after", ann);
  expect("tool", toolParts(messages[1]), [["output-available", "all is gone"]]);
  expect("words", count(messages[1]), 20);
}

async function denied(name) {
  const ann = await open("ann", name);
  const bob = await open("bob", name);
  await say(ann, "delete 20 5");
  await until("both are asked", () => isIdle(ann) && requested(ann).length && requested(bob).length);
  bob.chat.addToolApprovalResponse({ id: requested(bob)[0].approval.id, approved: false });
  await midway(ann, 5);
  const messages = await agree("after", ann, bob);
  expect("roles", roles(messages), "ua");
  expect("tool", toolParts(messages[1]), [["output-denied", null]]);
  expect("words", count(messages[1]), 20);
}

async function approved_and_denied(name) {
  const ann = await open("ann", name);
  await say(ann, "deletes 10 5");
  await until("it is asked twice", () => isIdle(ann) && requested(ann).length === 2);
  const [one, two] = requested(ann);
  ann.chat.addToolApprovalResponse({ id: one.approval.id, approved: true });
  await until("one is left", () => requested(ann).length === 1);
  await sleep(200);
  ann.chat.addToolApprovalResponse({ id: two.approval.id, approved: false });
  await midway(ann, 5);
  const messages = await agree("after", ann);
  expect("tools", toolParts(messages[1]), [["output-available", "one is gone"], ["output-denied", null]]);
  whole("answer", messages[1], 10);
}

async function approved_after_a_restart(name) {
  const ann = await open("ann", name);
  await say(ann, "delete 10 10");
  await until("it is asked", () => isIdle(ann) && requested(ann).length);
  await restart("kill");
  const bob = await open("bob", name);
  await until("bob is asked", () => requested(bob).length);
  bob.chat.addToolApprovalResponse({ id: requested(bob)[0].approval.id, approved: true });
  await midway(bob, 5);
  const messages = await agree("after", ann, bob);
  expect("tool", toolParts(messages[1]), [["output-available", "all is gone"]]);
  expect("words", count(messages[1]), 10);
}

async function unanswered(name) {
  const ann = await open("ann", name);
  const bob = await open("bob", name);
  await say(ann, "delete 10 10");
  await until("it is asked", () => isIdle(ann) && requested(ann).length);
  await say(ann, "say 10 10");
  await until("it is answered", () => count(last(ann)) >= 10);
  const messages = await agree("after", ann, bob);
  expect("roles", roles(messages), "uaua");
  expect("tool", toolParts(messages[1]).map(([state]) => state), ["output-error"]);
}

async function error(name) {
  const ann = await open("ann", name);
  const bob = await open("bob", name);
  await say(ann, "fall 8 5");
  await until("ann is told", () => ann.chat.error);
  expect("what ann is told", ann.chat.error.message, (ann.fails = "The model is out of order."));
  const messages = await agree("after", ann, bob);
  expect("some was said", count(messages[1]), 8);
  expect("how it ended", ann.ends.concat(bob.ends).map(({ outcome, error }) => [outcome, error]), Array(2).fill(["error", "The model is out of order."]));
  ann.close();
  const again = await open("ann again", name);
  await until("ann is told again", () => again.chat.error);
  expect("what ann is told again", again.chat.error.message, (again.fails = "The model is out of order."));
  await agree("reloaded", again, bob);
  again.fails = null;
  await say(again, "say 5 5");
  const more = await agree("next", again, bob);
  expect("roles", roles(more), "uaua");
  const cat = await open("cat", name);
  await sleep(300);
  expect("and not told any more", cat.chat.error ?? null, null);
}

async function error_at_once(name) {
  const ann = await open("ann", name);
  await say(ann, "fail");
  await until("ann is told", () => ann.chat.error);
  expect("what ann is told", ann.chat.error.message, (ann.fails = "The model is out of order."));
  await agree("after", ann);
  await restart("kill");
  const bob = await open("bob", name);
  await until("bob is told", () => bob.chat.error);
  expect("what bob is told", bob.chat.error.message, (bob.fails = "The model is out of order."));
  const messages = await agree("restarted", bob);
  expect("roles", roles(messages)[0], "u");
}

async function error_while_away(name) {
  const ann = await open("ann", name, { agent: "Own" });
  await say(ann, "go");
  await midway(ann, 4);
  ann.agent.close();
  await until("ann is away", () => scenario().open.size === 0);
  await letGo(ann, "w3");
  await ended(ann, 1);
  ann.agent.reconnect();
  await until("ann is told", () => ann.chat.error?.message === (ann.fails = "It fell over."));
  const messages = await agree("after", ann);
  expect("what was said", texts(messages[1]), " w0 w1 w2 w3 w4 w5 w6 w7");
}

const ALL = ["say 20 5 @w4", "say 8 5", "say 9 5"];
const LONG = "say 200 5 @w1";

/** Say three things while the first is answered: from one tab, or the others from a second. */
async function hurry(name, agent, by = "ann") {
  const ann = await open("ann", name, { agent });
  const bob = await open("bob", name, { agent });
  const other = by === "ann" ? ann : bob;
  await say(ann, ALL[0]);
  await midway(ann, 5);
  await say(other, agent === "Interrupt" ? LONG : ALL[1]);
  await (agent === "Interrupt" ? midway(other, 2, 4) : heard(other));
  await say(other, ALL[2]);
  await heard(other);
  await letGo(ann, "w4");
  const messages = await agree("after", ann, bob);
  const asked = messages.filter(({ role }) => role === "user").map(texts);
  const answers = messages.filter(({ role }) => role === "assistant");
  const outcomes = (tab) => tab.ends.map(({ outcome }) => outcome).sort();
  return { roles: roles(messages), asked, answers, counts: answers.map(count), outcomes: outcomes(ann), watched: outcomes(bob) };
}

async function queue(name, by) {
  const { roles, asked, counts, outcomes } = await hurry(name, "Chat", by);
  expect("what is stored", [roles, asked, counts], ["uauaua", ALL, [20, 8, 9]]);
  expect("how they ended", outcomes, ["completed", "completed", "completed"]);
}

async function latest(name, by) {
  const { roles, asked, counts, outcomes } = await hurry(name, "Latest", by);
  expect("what is stored", [roles, asked, counts], ["uauua", ALL, [20, 9]]);
  expect("how they ended", outcomes, ["completed", "completed", "skipped"]);
}

async function merge(name, by) {
  const { roles, asked, counts, outcomes } = await hurry(name, "Merge", by);
  expect("what is stored", [roles, asked, counts], ["uauua", ALL, [20, 9]]);
  expect("how they ended", outcomes, ["completed", "completed", "skipped"]);
}

async function drop(name, by) {
  const { roles, asked, counts, outcomes } = await hurry(name, "Drop", by);
  expect("what is stored", [roles, asked, counts], ["ua", [ALL[0]], [20]]);
  expect("how they ended", outcomes, by === "bob" ? ["completed"] : ["completed", "skipped", "skipped"]);
}

async function interrupt(name, by) {
  const { roles, asked, counts, outcomes } = await hurry(name, "Interrupt", by);
  expect("what is stored", [roles, asked, counts], ["uauaua", [ALL[0], LONG, ALL[2]], [5, 2, 9]]);
  expect("how they ended", outcomes, ["aborted", "aborted", "completed"]);
}

async function debounce(name) {
  const ann = await open("ann", name, { agent: "Debounce" });
  const bob = await open("bob", name, { agent: "Debounce" });
  for (const text of ["say 3 5", "say 4 5", "say 5 5"]) await say(ann, text);
  await until("it is answered", () => count(last(ann)) >= 5);
  const messages = await agree("after", ann, bob);
  expect("what is stored", [roles(messages), messages.slice(0, 3).map(texts)], ["uuua", ["say 3 5", "say 4 5", "say 5 5"]]);
  whole("answer", messages[3], 5);
  expect("how they ended", ann.ends.map(({ outcome }) => outcome).sort(), ["completed", "skipped", "skipped"]);
}

const from_another = (policy) => (name) => policy(name, "bob");

async function server_started(name) {
  const ann = await open("ann", name);
  const bob = await open("bob", name);
  await ann.agent.call("remind", ["say 20 5 @w4"]);
  await midway(ann, 5);
  await midway(bob, 5);
  await letGo(ann, "w4");
  const messages = await agree("after", ann, bob);
  expect("roles", roles(messages), "ua");
  whole("answer", messages[1], 20);
  grew("after", ann, messages);
  await ann.agent.call("remind", ["say 40 5 @w9"]);
  await midway(ann, 10, 4);
  const cat = await open("cat", name);
  await midway(cat, 10, 4);
  await letGo(ann, "w9");
  const more = await agree("again", ann, bob, cat);
  whole("second answer", more[3], 40);
}

/** The model falls silent, and is asked again: nobody shows anything twice. */
async function stalled(name, says = "say 30 5 ~w9", options = {}, hold = null) {
  const ann = await open("ann", name, { agent: "Hurried", ...options });
  const bob = await open("bob", name, { agent: "Hurried" });
  await say(ann, says);
  await hold?.(ann, bob);
  // What the hook makes of it lasts until the next word, which may be there at once: the frames tell.
  const isTold = ({ received }) => received.some(({ type, recovering }) => type === "cf_agent_chat_recovering" && recovering);
  await until("both are told", () => [ann, bob].every((tab) => tab.socketsMade().some(isTold)));
  await ended(ann, 1);
  for (const tab of [ann, bob]) if (hold) tab.sockets.release();
  const messages = await agree("after", ann, bob);
  expect("roles", roles(messages), "ua");
  expect("how it ended", [ann.ends.at(-1).outcome, bob.ends.at(-1).outcome], ["completed", "completed"]);
  whole("answer", messages[1], 30);
  await say(bob, "say 3 5");
  expect("roles again", roles(await agree("next", ann, bob)), "uaua");
}

const stalled_after_client_tool = (name) => stalled(name, "time 30 5 ~w9", RUNS);

/** Both are offered what is said again, and take the offer when it is over: nobody shows an empty message. */
async function taken_late(ann, bob) {
  for (const tab of [ann, bob]) await midway(tab, 6);
  for (const tab of [ann, bob]) tab.sockets.held = [];
  await letGo(ann, "w5");
}

/** The model stays silent, however often it is asked. */
async function failed_and_late(name) {
  const ann = await open("ann", name, { agent: "Hurried" });
  const bob = await open("bob", name, { agent: "Hurried" });
  await say(ann, "say 30 5 @w5");
  for (const tab of [ann, bob]) await midway(tab, 6);
  for (const tab of [ann, bob]) tab.sockets.held = [];
  await ended(ann, 1);
  for (const tab of [ann, bob]) tab.sockets.release();
  const messages = await agree("after", ann, bob);
  expect("what is stored", [roles(messages), count(messages[1])], ["ua", 6]);
}

const stalled_and_late = (name) => stalled(name, "say 30 5 @w5 ~w9", {}, taken_late);
const stalled_after_client_tool_and_late = (name) => stalled(name, "time 30 5 @w5 ~w9", RUNS, taken_late);

async function long(name) {
  const ann = await open("ann", name);
  const bob = await open("bob", name);
  await say(ann, "say 500 4 @w99");
  await midway(bob, 100);
  bob.close();
  await letGo(ann, "w99");
  const again = await open("bob again", name);
  const messages = await agree("after", ann, again);
  whole("answer", messages[1], 500);
  grew("after", ann, messages);
  grew("after", again, messages);
}

async function burst(name) {
  const ann = await open("ann", name);
  const bob = await open("bob", name);
  await say(ann, "say 500 0");
  await until("it is there", () => count(last(ann)) === 500);
  const messages = await agree("after", ann, bob);
  whole("answer", messages[1], 500);
}

const ALONE = {
  ...{ killed, killed_in_the_second_step, killed_and_reloaded, killed_over_and_over, client_tool_killed },
  ...{ approved_after_a_restart, error_at_once },
};
const TOGETHER = {
  ...{ send, two_tabs, reload, reload_at_once, reload_between_steps, dropped, long, burst, server_started },
  ...{ stalled, stalled_after_client_tool, stalled_and_late, stalled_after_client_tool_and_late, failed_and_late },
  ...{ stop, stop_by_another, clear, clear_midway, regenerate, edited, branched, crossed, crossed_with_clear },
  ...{ client_tool, client_tools, client_tools_by_hand, client_tool_after_client_tool, client_tool_fails },
  ...{ client_tool_reloaded, approved, approved_and_asked_late, denied, approved_and_denied, unanswered },
  ...{ error, error_while_away, queue, latest, merge, drop, debounce, interrupt },
  crossed_from_another: from_another(crossed),
  queue_from_another: from_another(queue),
  latest_from_another: from_another(latest),
  merge_from_another: from_another(merge),
  drop_from_another: from_another(drop),
  interrupt_from_another: from_another(interrupt),
};

// Who restarts the server does so for everybody: those run alone.
const [what, ...only] = process.argv.slice(4);
const options = { end, only, patience: 300_000 };
await (what === "alone" ? run(ALONE, options) : run(TOGETHER, { ...options, together: 4 }));

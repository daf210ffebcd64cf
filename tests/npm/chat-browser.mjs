// Opens chat-page.js in a real Chromium: `node chat-browser.mjs HOST CHROMIUM FOLDER together|alone|pictures|large_pictures [SCENARIO]…`. Prints what its tabs showed.
import puppeteer from "puppeteer-core";
import { expect, host, restart, run, scenario, sleep } from "./recording.mjs";

const [executablePath, userDataDir, what, ...only] = process.argv.slice(3);
const QUIET = ["background-networking", "component-update", "default-apps", "domain-reliability", "sync", "extensions"];
const args = ["--no-sandbox", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage"];
// A tab that nobody looks at is to work as fast as any other.
const EAGER = ["background-timer-throttling", "renderer-backgrounding", "backgrounding-occluded-windows"];
const browser = await puppeteer.launch({
  ...{ executablePath, userDataDir, headless: true, timeout: 120_000, protocolTimeout: 300_000 },
  args: [...args, ...[...QUIET, ...EAGER].map((what) => `--disable-${what}`), "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1"],
});
const PATIENCE = { timeout: 60_000, polling: 20 };

/** Note in the page how often it has asked the server for something. */
function countRequests() {
  window.requests = 0;
  const { send } = WebSocket.prototype;
  window.sent = [];
  WebSocket.prototype.send = function (data) {
    window.sent.push(String(data).length);
    if (String(data).includes('"cf_agent_use_chat_request"')) window.requests += 1;
    return send.call(this, data);
  };
}

async function open(name, agent = "Chat") {
  const tab = await browser.newPage();
  (scenario().tabs ??= []).push(tab);
  await tab.evaluateOnNewDocument(countRequests);
  await tab.goto(`http://${host}/pages/chat.html?name=${name}&agent=${agent}`);
  await ready(tab);
  return tab;
}

/** Wait until a tab has heard how the conversation stands: until then that takes away what it has said meanwhile. */
async function ready(tab) {
  await tab.waitForFunction(() => window.chat?.agent.identified, PATIENCE);
  await tab.evaluate(() => window.chat.agent.call("is_idle"));
}

async function reloaded(tab) {
  await tab.reload();
  await ready(tab);
}

async function end({ tabs = [] }) {
  for (const tab of tabs) await tab.close();
}

/** Have a tab ask for something; return when it has, and the server has heard it. */
async function asks(tab, ask, ...args) {
  const before = await tab.evaluate(() => window.requests);
  await tab.evaluate(ask, ...args);
  await tab.waitForFunction((before) => window.requests > before, PATIENCE, before);
  await tab.evaluate(() => window.chat.agent.call("is_idle"));
}

const say = (tab, text) => asks(tab, (text) => void window.chat.chat.sendMessage({ text }), text);

/** Let the model go on that waits after this word. */
const letGo = (name, word, agent = "Chat") => fetch(`http://${host}/agents/${agent.toLowerCase()}/${name}/go-on/${word}`, { method: "POST" });

const stored = async (name, agent = "Chat") => (await fetch(`http://${host}/agents/${agent.toLowerCase()}/${name}/get-messages`)).json();

/** Wait until a tab shows so many words of the last answer, and perhaps so many messages. */
const midway = (tab, words, messages = 0) =>
  tab.waitForFunction(
    (words, messages) => {
      const shown = window.chat.chat.messages;
      const said = shown.at(-1)?.parts.map(({ text }) => text ?? "").join(" ").match(/[a-z]\d+/g) ?? [];
      return shown.at(-1)?.role === "assistant" && said.length >= words && (!messages || shown.length === messages);
    },
    ...[PATIENCE, words, messages],
  );

/** Wait until nothing happens any more, then hold every tab to what is stored. */
async function agree(name, tabs, { agent = "Chat", error = null } = {}) {
  for (let since = null; since === null || Date.now() - since < 400; await sleep(50)) {
    const quiet = await Promise.all(tabs.map((tab) => tab.evaluate(async () => !window.chat.isBusy && (await window.chat.agent.call("is_idle")) && !window.chat.isBusy)));
    since = quiet.every(Boolean) ? (since ?? Date.now()) : null;
  }
  const messages = await stored(name, agent);
  for (const [at, tab] of tabs.entries()) {
    const [shown, told] = await tab.evaluate(() => [document.getElementById("messages").textContent, window.chat.error]);
    const plain = JSON.parse(shown, (key, value) => (key === "toolName" ? undefined : value));
    expect(`tab ${at}`, plain, messages);
    expect(`the error of tab ${at}`, told, error);
  }
  return messages;
}

const texts = (message) => message.parts.filter(({ type }) => type === "text").map(({ text }) => text).join(" ");
const roles = (messages) => messages.map(({ role }) => role[0]).join("");
const all = (count) => Array.from({ length: count }, (_, at) => `w${at}`).join(" ");

/** Hold an answer to this: every word once, in order, of one process. */
function whole(message, count) {
  expect("words", texts(message).replace(/^\[life \d+\] /, ""), all(count));
}

async function send(name) {
  const tab = await open(name);
  await say(tab, "say 40 5 @w4 @w19");
  for (const word of [4, 19]) {
    await midway(tab, word + 1);
    await letGo(name, `w${word}`);
  }
  whole((await agree(name, [tab]))[1], 40);
}

async function two_tabs(name) {
  const [one, two] = [await open(name), await open(name)];
  await say(one, "say 60 5 @w4");
  await midway(two, 5);
  await letGo(name, "w4");
  whole((await agree(name, [one, two]))[1], 60);
  await say(two, "look 30 5 @b4");
  await midway(one, 8, 4);
  await letGo(name, "b4");
  const messages = await agree(name, [one, two]);
  expect("roles", roles(messages), "uaua");
}

async function reload(name) {
  const tab = await open(name);
  await say(tab, "say 100 5 @w9 @w29 @w59");
  for (const word of [9, 29, 59]) {
    await midway(tab, word + 1);
    await reloaded(tab);
    await midway(tab, word + 1);
    await letGo(name, `w${word}`);
  }
  whole((await agree(name, [tab]))[1], 100);
}

async function killed(name) {
  const [one, two] = [await open(name), await open(name)];
  await say(one, "say 60 5 @w19");
  for (const tab of [one, two]) await midway(tab, 20);
  const [life] = texts((await one.evaluate(() => window.chat.chat.messages)).at(-1)).match(/\[life \d+\]/);
  await restart("kill");
  const goesOn = (life) => /\[life \d+\]/.test(JSON.stringify(window.chat.chat.messages.at(-1))) && !JSON.stringify(window.chat.chat.messages.at(-1)).includes(life);
  for (const tab of [one, two]) await tab.waitForFunction(goesOn, PATIENCE, life);
  await letGo(name, "w19");
  whole((await agree(name, [one, two]))[1], 60);
}

async function cancel(name) {
  const [one, two] = [await open(name), await open(name)];
  await say(one, "say 200 5 @w9");
  for (const tab of [one, two]) await midway(tab, 10);
  await one.evaluate(() => window.chat.chat.stop());
  whole((await agree(name, [one, two]))[1], 10);
  expect("how it ended", await two.evaluate(() => window.chat.ends), ["aborted"]);
}

async function clear(name) {
  const [one, two] = [await open(name), await open(name)];
  await say(one, "say 200 5 @w9");
  await midway(two, 10);
  await two.evaluate(() => window.chat.chat.clearHistory());
  expect("nothing is left", await agree(name, [one, two]), []);
  await say(one, "say 10 5");
  const messages = await agree(name, [one, two]);
  expect("roles", roles(messages), "ua");
  whole(messages[1], 10);
}

async function regenerate(name) {
  const [one, two] = [await open(name), await open(name)];
  await say(one, "say 10 5");
  const before = await agree(name, [one, two]);
  await asks(one, () => void window.chat.chat.regenerate());
  const messages = await agree(name, [one, two]);
  expect("roles", roles(messages), "ua");
  expect("it is another answer", messages[1].id === before[1].id, false);
  whole(messages[1], 10);
}

async function client_tools(name) {
  const tab = await open(name);
  await say(tab, "times 30 5 @w4");
  await midway(tab, 5);
  await letGo(name, "w4");
  const messages = await agree(name, [tab]);
  expect("messages", messages.length, 2);
  expect("tools", messages[1].parts.filter(({ type }) => type === "tool-getTime").map(({ output }) => output), ["12:00", "13:00"]);
  whole(messages[1], 30);
}

const answer = (approved) => async (name) => {
  const [one, two] = [await open(name), await open(name)];
  await say(one, "delete 30 5");
  const isAsked = () => !window.chat.isBusy && window.chat.chat.messages.at(-1)?.parts.some(({ state }) => state === "approval-requested");
  for (const tab of [one, two]) await tab.waitForFunction(isAsked, PATIENCE);
  await one.evaluate((approved) => {
    const { approval } = window.chat.chat.messages.at(-1).parts.find(({ state }) => state === "approval-requested");
    window.chat.chat.addToolApprovalResponse({ id: approval.id, approved });
  }, approved);
  await midway(one, 30);
  const messages = await agree(name, [one, two]);
  const [part] = messages[1].parts.filter(({ type }) => type === "tool-delete");
  expect("tool", part.state, approved ? "output-available" : "output-denied");
};

async function error_while_away(name) {
  const tab = await open(name, "Own");
  await say(tab, "go");
  await midway(tab, 4);
  await tab.evaluate(() => window.chat.agent.close());
  await tab.waitForFunction(() => window.chat.agent.readyState === WebSocket.CLOSED, PATIENCE);
  await letGo(name, "w3", "Own");
  while (!(await stored(name, "Own"))[1]) await sleep(25);
  await tab.evaluate(() => window.chat.agent.reconnect());
  await tab.waitForFunction(() => window.chat.error, PATIENCE);
  const messages = await agree(name, [tab], { agent: "Own", error: "It fell over." });
  expect("what was said", texts(messages[1]).trim(), all(8));
}

const ALL = ["say 20 5 @w4", "say 8 5", "say 9 5"];

/** Say three things while the first is answered; what is stored is what the policy says, and every tab shows it. */
const policy = (agent, wanted, counts, ends) => async (name) => {
  const [one, two] = [await open(name, agent), await open(name, agent)];
  await say(one, ALL[0]);
  if (agent !== "Debounce") await midway(one, 5);
  await say(one, agent === "Interrupt" ? "say 8 5 @w1" : ALL[1]);
  if (agent === "Interrupt") await midway(one, 2, 4);
  await say(one, ALL[2]);
  await letGo(name, "w4", agent);
  if (agent === "Debounce") await midway(one, 9);
  const messages = await agree(name, [one, two], { agent });
  expect("roles", roles(messages), wanted);
  expect("words", messages.filter(({ role }) => role === "assistant").map((message) => (texts(message).match(/w\d+/g) ?? []).length), counts);
  expect("how they ended", (await one.evaluate(() => window.chat.ends)).sort(), ends);
};

/** Make a picture of noise in a tab, as a `data:` URL: about three bytes per pixel, and no two are the same. */
const noise = (side) => {
  const canvas = Object.assign(document.createElement("canvas"), { width: side, height: side });
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(side, side);
  for (let at = 0; at < pixels.data.length; at += 65536) crypto.getRandomValues(pixels.data.subarray(at, at + 65536));
  for (let at = 3; at < pixels.data.length; at += 4) pixels.data[at] = 255;
  context.putImageData(pixels, 0, 0);
  return canvas.toDataURL("image/png");
};

/** Have a tab send a picture of noise; return its digest and its size. */
const sendPicture = (tab, side) =>
  tab.evaluate(
    async (noise, side) => {
      const url = eval(noise)(side);
      const bytes = await (await fetch(url)).arrayBuffer();
      const digest = [...new Uint8Array(await crypto.subtle.digest("SHA-256", bytes))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
      window.chat.chat.sendMessage({ text: "see", files: [{ type: "file", mediaType: "image/png", filename: "noise.png", url }] });
      return { digest, size: bytes.byteLength };
    },
    noise.toString(),
    side,
  );

const isShown = (digest) => [...document.images].some((one) => one.src.endsWith(`/files/${digest}`) && one.complete && one.naturalWidth > 0);

/** A picture gets to the model, both tabs show it, and its sender does not send its bytes again. */
const picture = (side, least) => async (name) => {
  const [one, two] = [await open(name), await open(name)];
  const { digest, size } = await sendPicture(one, side);
  expect("size", size >= least, true);
  for (const tab of [one, two]) await tab.waitForFunction(isShown, PATIENCE, digest);
  const [, answer] = await agree(name, [one, two]);
  expect("what the model saw", texts(answer), `saw ${digest}`);
  await one.evaluate(() => (window.sent.length = 0));
  await say(one, "say 3 5");
  expect("next frame", Math.max(...(await one.evaluate(() => window.sent))) <= 65_536, true);
  await agree(name, [one, two]);
  const newcomer = await open(name);
  await newcomer.waitForFunction(isShown, PATIENCE, digest);
};

const PICTURES = { picture: picture(620, 1e6) };
const LARGE_PICTURES = { large_picture: picture(2640, 20e6) };
const TOGETHER = {
  ...{ send, two_tabs, reload, cancel, clear, regenerate, client_tools, approved: answer(true), denied: answer(false), error_while_away },
  queue: policy("Chat", "uauaua", [20, 8, 9], ["completed", "completed", "completed"]),
  latest: policy("Latest", "uauua", [20, 9], ["completed", "completed", "skipped"]),
  merge: policy("Merge", "uauua", [20, 9], ["completed", "completed", "skipped"]),
  drop: policy("Drop", "ua", [20], ["completed", "skipped", "skipped"]),
  debounce: policy("Debounce", "uuua", [9], ["completed", "skipped", "skipped"]),
  interrupt: policy("Interrupt", "uauaua", [5, 2, 9], ["aborted", "aborted", "completed"]),
};
// Who restarts the server does so for everybody.
const scenarios = { alone: { killed }, pictures: PICTURES, large_pictures: LARGE_PICTURES, together: TOGETHER }[what];
await run(scenarios, { end, only, patience: 300_000, together: what === "alone" ? 1 : 3, finish: () => browser.close() });

// Opens chat-page.js in a real Chromium: `node chat-browser.mjs HOST CHROMIUM FOLDER`. Prints what its tabs showed.
import puppeteer from "puppeteer-core";
import { expect, host, restart, run, scenario, sleep } from "./recording.mjs";

const [executablePath, userDataDir] = process.argv.slice(3);
const QUIET = ["background-networking", "component-update", "default-apps", "domain-reliability", "sync", "extensions"];
const args = ["--no-sandbox", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage"];
const browser = await puppeteer.launch({
  ...{ executablePath, userDataDir, headless: true, timeout: 60_000 },
  args: [...args, ...QUIET.map((what) => `--disable-${what}`), "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1"],
});
const PATIENCE = { timeout: 10_000, polling: 20 };

async function open(name) {
  const tab = await browser.newPage();
  (scenario().tabs ??= []).push(tab);
  await tab.goto(`http://${host}/pages/chat.html?name=${name}`);
  await tab.waitForFunction(() => window.chat?.agent.identified, PATIENCE);
  return tab;
}

async function end({ tabs = [] }) {
  for (const tab of tabs) await tab.close();
}

const say = (tab, text) => tab.evaluate((text) => void window.chat.chat.sendMessage({ text }), text);

/** Wait until a tab shows so many words of the last answer. */
const midway = (tab, words) =>
  tab.waitForFunction((words) => (window.chat.chat.messages.at(-1)?.parts.map(({ text }) => text ?? "").join(" ").match(/[a-z]\d+/g) ?? []).length >= words, PATIENCE, words);

/** Wait until nothing happens any more, then hold every tab to what is stored. */
async function agree(name, ...tabs) {
  for (let since = null; since === null || Date.now() - since < 400; await sleep(50)) {
    const quiet = await Promise.all(tabs.map((tab) => tab.evaluate(async () => !window.chat.isBusy && (await window.chat.agent.call("is_idle")))));
    since = quiet.every(Boolean) ? (since ?? Date.now()) : null;
  }
  const stored = await (await fetch(`http://${host}/agents/chat/${name}/get-messages`)).json();
  for (const [at, tab] of tabs.entries()) {
    const [shown, error] = await tab.evaluate(() => [document.getElementById("messages").textContent, window.chat.error]);
    const plain = JSON.parse(shown, (key, value) => (key === "toolName" ? undefined : value));
    expect(`tab ${at}`, plain, stored);
    expect(`tab ${at} has no error`, error, null);
  }
  return stored;
}

const texts = (message) => message.parts.filter(({ type }) => type === "text").map(({ text }) => text).join(" ");
const all = (count) => Array.from({ length: count }, (_, at) => `w${at}`).join(" ");

/** Hold an answer to this: every word once, in order, of one process. */
function whole(message, count) {
  expect("words", texts(message).replace(/^\[life \d+\] /, ""), all(count));
}

async function send(name) {
  const tab = await open(name);
  await say(tab, "say 40 25");
  await midway(tab, 5);
  whole((await agree(name, tab))[1], 40);
}

async function two_tabs(name) {
  const [one, two] = [await open(name), await open(name)];
  await say(one, "say 60 25");
  await midway(two, 5);
  await agree(name, one, two);
  await say(two, "look 30 25");
  await midway(one, 5);
  const messages = await agree(name, one, two);
  expect("roles", messages.map(({ role }) => role[0]).join(""), "uaua");
}

async function reload(name) {
  const tab = await open(name);
  await say(tab, "say 100 25");
  for (const words of [10, 30, 60]) {
    await midway(tab, words);
    await tab.reload();
  }
  await midway(tab, 70);
  whole((await agree(name, tab))[1], 100);
}

async function killed(name) {
  const [one, two] = [await open(name), await open(name)];
  await say(one, "say 60 30");
  await midway(one, 20);
  await restart("kill");
  for (const tab of [one, two]) await tab.waitForFunction(() => window.chat.isBusy, PATIENCE);
  whole((await agree(name, one, two))[1], 60);
}

async function client_tools(name) {
  const tab = await open(name);
  await say(tab, "times 30 20");
  await midway(tab, 5);
  const messages = await agree(name, tab);
  expect("messages", messages.length, 2);
  whole(messages[1], 30);
}

const answer = (approved) => async (name) => {
  const [one, two] = [await open(name), await open(name)];
  await say(one, "delete 30 20");
  const isAsked = () => !window.chat.isBusy && window.chat.chat.messages.at(-1)?.parts.some(({ state }) => state === "approval-requested");
  for (const tab of [one, two]) await tab.waitForFunction(isAsked, PATIENCE);
  await one.evaluate((approved) => {
    const { approval } = window.chat.chat.messages.at(-1).parts.find(({ state }) => state === "approval-requested");
    window.chat.chat.addToolApprovalResponse({ id: approval.id, approved });
  }, approved);
  await midway(one, 5);
  const messages = await agree(name, one, two);
  const [part] = messages[1].parts.filter(({ type }) => type === "tool-delete");
  expect("tool", part.state, approved ? "output-available" : "output-denied");
};

const scenarios = { send, two_tabs, reload, killed, client_tools, approved: answer(true), denied: answer(false) };
await run(scenarios, { end, only: [], patience: 60_000, finish: () => browser.close() });

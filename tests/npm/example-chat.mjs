// Uses the page of examples/chat as a person would: `node example-chat.mjs HOST CHROMIUM PROFILE PICTURES`.
import { NARROW, restart, run, stored } from "./example.mjs";

const at = (name) => `/?chat=${name}`;
const texts = async (name) => (await stored("assistant", name)).map(({ parts }) => parts.map(({ text }) => text ?? "").join(""));
const answer = (tab) => tab.text(".is-assistant:last-of-type .text");

async function empty(open, name) {
  const tab = await open(at(name));
  await tab.shows("connected", ".badge");
  return [await tab.text(".empty h2"), await tab.pictured("chat-empty")];
}

async function server_tool_and_a_turn_nobody_asked_for(open, name) {
  const tab = await open(at(name));
  await tab.say("Remind me to stretch in 2 seconds");
  await tab.shows("stretch", ".side .item");
  await tab.shows("Done.", ".is-assistant");
  await tab.shows("Due now: stretch", ".is-notice");
  await tab.shows("It is time: stretch", ".is-assistant");
  await tab.rests();
  await tab.shows("None yet", ".side");
  return [await tab.text(".card .name"), await tab.text(".card .badge")];
}

async function client_tool(open, name) {
  const tab = await open(at(name), { zone: "Asia/Tokyo" });
  await tab.say("What time is it?");
  await tab.shows("in Asia/Tokyo.", ".is-assistant");
  await tab.rests();
  return [await tab.text(".card .name"), await tab.count(".message")];
}

const approval = (button) => async (open, name) => {
  const [tab, other] = [await open(at(name)), await open(at(name))];
  await tab.say("Remind me to water the plants in 2 hours");
  await tab.shows("Done.", ".is-assistant");
  await tab.rests();
  await tab.say("Forget the plants");
  for (const one of [tab, other]) await one.shows("needs your approval", ".card");
  await tab.rests();
  await tab.page.reload();
  await tab.shows("needs your approval", ".card");
  await tab.press(`${button} forget`);
  for (const one of [tab, other]) await one.shows(button === "Approve" ? "1 deleted" : "leave it as it is", ".is-assistant");
  for (const one of [tab, other]) await one.rests();
  return [await tab.text(".is-assistant:last-of-type .badge"), await other.text(".side .item span"), (await texts(name)).at(-1)];
};

async function stopped(open, name) {
  const tab = await open(at(name));
  await tab.say("Tell me a story");
  await tab.speaks(60);
  await tab.press("Stop");
  await tab.rests();
  await tab.page.reload();
  await tab.speaks(1);
  const [kept, shown] = [(await texts(name)).at(-1), await answer(tab)];
  return [shown.replaceAll("\n", "").length < 400, kept.replaceAll(/[\s*]/g, "") === shown.replaceAll(/\s/g, "")];
}

async function reloaded(open, name) {
  const tab = await open(at(name));
  await tab.say("Tell me a story");
  for (const length of [60, 200, 300]) {
    await tab.speaks(length);
    await tab.page.reload();
  }
  await tab.speaks(310);
  await tab.rests();
  const [kept, shown] = [(await texts(name)).at(-1), await answer(tab)];
  return [await tab.count(".message"), kept.length > 400, kept.replaceAll(/[\s*]/g, "") === shown.replaceAll(/\s/g, "")];
}

async function killed(open, name) {
  const tab = await open(at(name));
  await tab.say("Tell me a story");
  await tab.speaks(100);
  await restart();
  tab.problems.length = 0; // a browser says so when a connection is refused
  await tab.shows("connected", ".badge.is-good");
  await tab.speaks(400);
  await tab.rests();
  const [kept, shown] = [(await texts(name)).at(-1), await answer(tab)];
  tab.problems.splice(0, tab.problems.length, ...tab.problems.filter((problem) => !problem.includes("ERR_CONNECTION_REFUSED")));
  return [await tab.count(".message"), kept.replaceAll(/[\s*]/g, "") === shown.replaceAll(/\s/g, "")];
}

async function regenerated(open, name) {
  const tab = await open(at(name));
  await tab.say("Hello");
  await tab.speaks(5);
  await tab.rests();
  const [before] = (await stored("assistant", name)).slice(-1);
  await tab.press("Regenerate");
  await tab.page.waitForFunction((id) => !document.querySelector(".message-foot"), { polling: 10 }, before.id);
  await tab.page.waitForSelector(".message-foot");
  const after = await stored("assistant", name);
  return [after.length, after.at(-1).id !== before.id, await tab.count(".message")];
}

async function cleared(open, name) {
  const [tab, other] = [await open(at(name)), await open(at(name))];
  await tab.say("Hello");
  for (const one of [tab, other]) await one.speaks(5);
  for (const one of [tab, other]) await one.rests();
  await tab.press("Clear");
  const asked = await tab.text(".head .is-bad");
  await tab.page.setViewport(NARROW);
  const flaws = await tab.flaws();
  await tab.press("Clear all?");
  for (const one of [tab, other]) await one.shows("What shall I remember", ".empty");
  return [asked, flaws, await stored("assistant", name)];
}

async function failed(open, name) {
  const tab = await open(at(name));
  await tab.say("Fail, please");
  await tab.shows("when it is told to", "[role=alert]");
  const flaws = await tab.pictured("chat-error");
  await tab.page.reload();
  await tab.shows("when it is told to", "[role=alert]");
  await tab.press("Try again");
  await tab.lacks("[role=alert]");
  await tab.shows("when it is told to", "[role=alert]");
  await tab.say("Hello");
  await tab.speaks(5);
  await tab.rests();
  return [flaws, await tab.count("[role=alert]")];
}

async function by_keyboard(open, name) {
  const tab = await open(at(name));
  const focused = () => tab.page.evaluate(() => document.activeElement.textContent.trim() || document.activeElement.id);
  const keys = async (...names) => { for (const key of names) await tab.page.keyboard.press(key); };
  const before = await focused();
  await tab.page.keyboard.type("Tell me a story");
  await keys("Enter");
  await tab.speaks(30);
  await keys("Escape");
  await tab.rests();
  await tab.page.keyboard.type("Forget everything");
  await keys("Enter");
  await tab.shows("needs your approval", ".card");
  await tab.rests();
  await tab.page.focus('[role="log"]');
  await keys("Tab");
  const first = await focused();
  await keys("Tab");
  const second = await focused();
  await keys("Enter");
  await tab.shows("leave it as it is");
  await tab.rests();
  return [before, first, second];
}

async function pictured(open, name) {
  const tab = await open(at(name));
  await tab.say("Hello");
  await tab.speaks(5);
  await tab.rests();
  await tab.say("Remind me to water the plants in 2 hours");
  await tab.shows("Done.", ".is-assistant");
  await tab.rests();
  await tab.say("What time is it?");
  await tab.shows("in Europe/Lisbon.", ".is-assistant");
  await tab.rests();
  await tab.say("Forget the plants");
  await tab.shows("needs your approval", ".card");
  await tab.rests();
  const flaws = await tab.pictured("chat");
  await tab.page.setViewport(NARROW);
  await tab.press("Reminders: 1");
  await tab.shows("water the plants", ".side");
  flaws.push(...(await tab.flaws()));
  await tab.picture("chat-panel");
  await tab.page.keyboard.press("Escape");
  await tab.lacks(".side.is-open");
  return flaws;
}

await run({
  ...{ empty, server_tool_and_a_turn_nobody_asked_for, client_tool, approved: approval("Approve"), denied: approval("Deny") },
  ...{ stopped, reloaded, killed, regenerated, cleared, failed, by_keyboard, pictured },
});

// What is tried with the page of runs-page.js, wherever it is shown. Every scenario ends with tabs that hold the same,
// also one that is opened only then: what is replayed is what was live. What they hold is compared with the databases.
import assert from "node:assert/strict";
import { expect, host, restart, scenario, sleep } from "./recording.mjs";

const PATIENCE = 60_000;
const POLL = 10;

/** One tab with the page; `see` runs a function in it, which is given its view. */
export class Tab {
  constructor(label, name) {
    Object.assign(this, { label, name });
  }

  static async open(label, name) {
    const tab = Tab.make(label, name);
    (scenario().tabs ??= []).push(tab);
    await tab.load();
    await tab.connected();
    return tab;
  }

  async connected() {
    await this.until("is connected", (view) => Boolean(view.levels[0]?.agent.identified));
    await this.heard(0);
  }

  /** Wait until it has heard how a conversation stands: until then that takes away what it has said meanwhile. */
  heard = (level) => this.see((view, level) => view.levels[level].agent.call("is_idle"), level);

  async close() {
    const { tabs } = scenario();
    tabs.splice(tabs.indexOf(this), 1);
    await this.unload();
  }

  async reload() {
    await this.unload();
    await this.load();
    await this.connected();
  }

  /** Wait until something is to be seen; return it. */
  async until(what, look, ...args) {
    let seen;
    for (const end = Date.now() + PATIENCE; !(seen = await this.see(look, ...args)); await sleep(POLL))
      if (Date.now() > end) throw new Error(`${this.label} waited in vain until it ${what}; it shows ${JSON.stringify(await this.panels())}`);
    return seen;
  }

  panels = (level = 0) => this.see((view, level) => view.panels(level), level);
  calls = (level = 0) => this.see((view, level) => view.calls(level), level);
  runs = (level = 0) => this.see((view, level) => view.runs(level), level);
  messages = (level = 0) => this.see((view, level) => view.messages(level), level);
  press = (name, level) => this.see((view, name, level) => void view.press(name, level), name, level ?? undefined);
  text = (selector, level) => this.see((view, selector, level) => view.text(selector, level), selector, level ?? undefined);

  /** Say something, and return when the server has heard it. */
  async say(text, level = 0) {
    const before = (await this.messages(level)).length;
    await this.see((view, text, level) => void view.say(text, level), text, level);
    await this.until("has said it", (view, before, level) => view.messages(level).length > before, before, level);
    await this.heard(level);
  }

  /** Wait until a panel shows this word. */
  hears = (word, level = 0) =>
    this.until(`hears ${word}`, (view, word, level) => view.panels(level).some(({ parts }) => parts.some(([, text]) => text.split(" ").includes(word))), word, level);

  /** Wait until the chat itself shows this word. */
  reads = (word, level = 0) => this.until(`reads ${word}`, (view, word, level) => view.text("article > .part", level).some((text) => text.split(" ").includes(word)), word, level);

  /** Wait until the panels of a conversation have these badges. */
  shows = (badges, level = 0) =>
    this.until(`shows ${badges}`, (view, badges, level) => view.panels(level).map(({ badge }) => badge).join() === badges, badges.join(), level);

  /** Open a run that is shown in a conversation, and return its level when it is there. */
  async opens(run, level = 0) {
    await this.press(`Open ${run}`, level);
    await this.until(`has opened ${run}`, (view, run, level) => view.levels[level]?.agent.identified && view.levels[level].agent.name === run, run, level + 1);
    return level + 1;
  }
}

const open = Tab.open;

/** Let everybody below the lead go on that waits after these words. */
async function letGo(name, ...words) {
  for (const word of words) await fetch(`http://${host}/agents/lead/${name}/go-on/${word}`, { method: "POST" });
}

const said = (panel, kind = "text") => panel.parts.filter(([one]) => one === kind).map(([, text]) => text).join(" ");
const wordsOf = (text) => text.replace(/\[life \d+\] ?/g, "");
const all = (word, count) => Array.from({ length: count }, (_, at) => `${word}${at}`).join(" ");
const badges = (panels) => panels.map(({ badge }) => badge);
const simple = ({ type, text, state, output, errorText, data }) => [type, text ?? output ?? errorText ?? data ?? null, type.startsWith("tool-") ? state : null];

/** Return when nothing is under way: nowhere below the lead, and nothing on the way to these tabs. */
async function quiet(tabs) {
  const isQuiet = async (view) => {
    const badges = view.panels().map(({ badge }) => badge);
    const isStill = () => view.levels.every(({ isBusy }) => !isBusy) && !badges.includes("Running");
    // Who was interrupted is followed on, for as long as it takes.
    return isStill() && ((await view.levels[0].agent.call("is_idle")) || badges.includes("Interrupted")) && isStill();
  };
  for (const tab of tabs) await tab.until("is quiet", isQuiet);
}

/** Hold all tabs to the same, also one that is opened now; note it, for the databases; return what is shown. */
async function agree(name, ...tabs) {
  await quiet(tabs);
  const late = await open(`${tabs[0].label}, later`, name);
  const all = [...tabs, late];
  let differences;
  for (const end = Date.now() + PATIENCE; (differences = await differencesOf(name, all)).length && Date.now() < end; ) await sleep(POLL);
  scenario().failures.push(...differences);
  for (const tab of all) expect(`${tab.label}: never showed anything else`, await tab.see((view) => view.odd()), []);
  await late.close();
  const shown = { messages: await tabs[0].messages(), runs: await tabs[0].runs(), panels: await tabs[0].panels(), calls: await tabs[0].calls() };
  keep(shown.runs);
  return shown;
}

/** Return in what tabs differ from the first one, and their messages from what is stored. What a tab has heard it shows a little later. */
async function differencesOf(name, tabs) {
  const messages = await (await fetch(`http://${host}/agents/lead/${name}/get-messages`)).json();
  const plain = (panels) => panels.map(({ progress, fraction, ...rest }) => rest);
  const [runs, panels, calls] = [await tabs[0].runs(), plain(await tabs[0].panels()), await tabs[0].calls()];
  const found = [];
  const compare = (what, seen, wanted) => isEqual(seen, wanted) || found.push(`${what}: ${JSON.stringify(seen)} instead of ${JSON.stringify(wanted)}`);
  for (const tab of tabs) {
    const held = await tab.runs();
    for (const id of Object.keys({ ...held, ...runs })) compare(`${tab.label}: run ${id}`, held[id], runs[id]);
    compare(`${tab.label}: panels`, plain(await tab.panels()), panels);
    compare(`${tab.label}: calls`, await tab.calls(), calls);
    compare(`${tab.label}: messages`, await tab.messages(), messages);
  }
  return found;
}

/** Note what a tab holds of runs: it is compared with what their helpers have stored. */
function keep(runs) {
  const held = (scenario().stored ??= {});
  for (const [id, { status, parts, summary }] of Object.entries(runs)) held[id] = { status, summary: summary ?? null, parts: parts.map(simple) };
}

function isEqual(one, other) {
  try {
    assert.deepEqual(one, other);
    return true;
  } catch {
    return false;
  }
}

async function one(name) {
  const [ann, bob] = [await open("ann", name), await open("bob", name)];
  await ann.say("ask think a 20 5 @a4");
  for (const tab of [ann, bob]) {
    await tab.hears("a4");
    const [panel, ...more] = await tab.panels();
    expect(`${tab.label}: one panel`, more, []);
    expect(`${tab.label}: who`, [panel.who, panel.badge, panel.error], ["The scholar", "Running", null]);
    expect(`${tab.label}: what it thinks`, said(panel, "reasoning"), "first this, then that");
    expect(`${tab.label}: what it has said`, wordsOf(said(panel)), all("a", 5));
    await tab.until("shows the whole call", (view) => view.calls()[0][1] !== "input-streaming"); // its run has begun before it is told
    const [[call, state]] = await tab.calls();
    expect(`${tab.label}: below its call`, [panel.call === call, panel.run === `agent-tool:${call}`, state], [true, true, "input-available"]);
  }
  await letGo(name, "a4");
  const { panels, calls, runs } = await agree(name, ann, bob);
  expect("badge", badges(panels), ["Done"]);
  expect("all it said", wordsOf(said(panels[0])), all("a", 20));
  expect("what the model is told", [calls[0][1], wordsOf(calls[0][2])], ["output-available", `scholar: ${all("a", 20)}`]);
  const [{ agentType, subAgent, runId, summary, inputPreview }] = Object.values(runs);
  expect("how to open it", [agentType, subAgent], ["Scholar", { agent: "Scholar", name: runId }], { quietly: true });
  expect("in and out", [inputPreview, wordsOf(summary)], ["think a 20 5 @a4", all("a", 20)]);
}

async function two_in_one_turn(name) {
  const [ann, bob] = [await open("ann", name), await open("bob", name)];
  await ann.say("ask say a 20 5 @a4 | say b 20 5 @b4");
  for (const tab of [ann, bob]) for (const word of ["a4", "b4"]) await tab.hears(word);
  await letGo(name, "b4");
  for (const tab of [ann, bob]) await tab.shows(["Running", "Done"]);
  await letGo(name, "a4");
  const { panels, calls } = await agree(name, ann, bob);
  expect("badges", badges(panels), ["Done", "Done"]);
  expect("each below its own call", panels.map(({ call }) => call), calls.map(([call]) => call), { quietly: true });
  expect("each has said its own", panels.map((panel) => wordsOf(said(panel))), [all("a", 20), all("b", 20)]);
}

async function two_under_one_call(name) {
  const [ann, bob] = [await open("ann", name), await open("bob", name)];
  await ann.say("compare say a 20 5 @a4 | say b 20 5 @b4");
  for (const tab of [ann, bob]) for (const word of ["a4", "b4"]) await tab.hears(word);
  await letGo(name, "b4");
  for (const tab of [ann, bob]) await tab.shows(["Running", "Done"]);
  const late = await open("late", name);
  await late.shows(["Running", "Done"]);
  await letGo(name, "a4");
  const { panels, calls } = await agree(name, ann, bob, late);
  expect("both below the one call", panels.map(({ call }) => call), [calls[0][0], calls[0][0]], { quietly: true });
  expect("in order", panels.map((panel) => wordsOf(said(panel))), [all("a", 20), all("b", 20)]);
  expect("calls", calls.map(([, state]) => state), ["output-available"]);
}

async function one_fails(name) {
  const [ann, bob] = [await open("ann", name), await open("bob", name)];
  await ann.say("ask fail");
  const { panels, calls } = await agree(name, ann, bob);
  expect("badge", badges(panels), ["Error"]);
  expect("why", panels[0].error.includes("The library is closed."), true);
  expect("call", [calls[0][1], calls[0][2].includes("The library is closed.")], ["output-error", true]);
  await ann.say("compare fail | say b 10 5 @b4");
  for (const tab of [ann, bob]) await tab.shows(["Error", "Error", "Running"]);
  await letGo(name, "b4");
  const after = await agree(name, ann, bob);
  expect("badges", badges(after.panels), ["Error", "Error", "Done"]);
  expect("calls", after.calls.map(([, state]) => state), ["output-error", "output-available"]);
}

async function inner_tool(name) {
  const ann = await open("ann", name);
  await ann.say("ask look a 20 5 @a4");
  await ann.hears("a4");
  await letGo(name, "a4");
  const { panels } = await agree(name, ann);
  expect("parts", panels[0].parts.map(([kind, text]) => [kind, wordsOf(text)]), [["text", "Let me see."], ["tool", "look: it is fine"], ["text", all("a", 20)]]);
}

async function late_tab(name) {
  const ann = await open("ann", name);
  await ann.say("ask look a 40 5 @a4 @a19 | say b 5 0");
  await ann.hears("a4");
  const bob = await open("bob", name);
  await bob.hears("a4");
  await letGo(name, "a4");
  for (const tab of [ann, bob]) await tab.hears("a19");
  const cat = await open("cat", name);
  await cat.hears("a19");
  await letGo(name, "a19");
  const { panels } = await agree(name, ann, bob, cat);
  expect("what was said", panels.map((panel) => wordsOf(said(panel))), [`Let me see. ${all("a", 40)}`, all("b", 5)]);
}

async function reloaded(name) {
  const ann = await open("ann", name);
  await ann.say("ask say a 40 5 @a4 @a19");
  for (const word of ["a4", "a19"]) {
    await ann.hears(word);
    await ann.reload();
    await ann.hears(word);
    await letGo(name, word);
  }
  const { panels } = await agree(name, ann);
  expect("what was said", wordsOf(said(panels[0])), all("a", 40));
}

async function dropped(name) {
  const [ann, bob] = [await open("ann", name), await open("bob", name)];
  await ann.say("compare say a 60 5 @a4 @a19 @a39 | say b 60 5 @b9 @b29");
  for (const words of [["a4", "b9"], ["a19", "b29"], ["a39"]]) {
    for (const tab of [ann, bob]) for (const word of words) await tab.hears(word);
    for (const tab of [ann, bob]) await tab.see((view) => void view.levels[0].agent.reconnect());
    await letGo(name, ...words);
  }
  const { panels } = await agree(name, ann, bob);
  expect("what was said", panels.map((panel) => wordsOf(said(panel))), [all("a", 60), all("b", 60)]);
  const before = await ann.see((view) => view.replayed);
  const late = await open("late", name);
  await late.shows(["Done", "Done"]);
  await ann.see((view) => void view.levels[0].agent.reconnect());
  await ann.until("is told all again", (view, wanted) => view.replayed >= wanted, before + (await late.see((view) => view.replayed)));
  expect("being told again changes nothing", (await agree(name, ann, bob, late)).panels, panels);
}

async function many(name) {
  const letters = [..."abcdefghijkl"];
  const ann = await open("ann", name);
  await ann.say(`ask ${letters.map((letter) => `say ${letter} 30 5 @${letter}9`).join(" | ")}`);
  for (const letter of letters) await ann.hears(`${letter}9`);
  for (const letter of letters.toReversed()) await letGo(name, `${letter}9`);
  const bob = await open("bob", name); // it hears of some live, of others how they were
  const { panels } = await agree(name, ann, bob);
  expect("all in order", panels.map((panel) => wordsOf(said(panel))), letters.map((letter) => all(letter, 30)));
  expect("all are done", new Set(badges(panels)).size, 1);
}

async function progress(name) {
  const ann = await open("ann", name);
  await ann.say("ask steps a 10 5");
  await ann.until("shows progress", (view) => view.panels()[0]?.progress === "looking");
  expect("how far", (await ann.panels())[0].fraction, "0.25");
  await letGo(name, "looked");
  await ann.until("shows a milestone", (view) => view.panels()[0].milestones.length === 1);
  expect("the milestone is how far it is", [(await ann.panels())[0].progress, (await ann.panels())[0].fraction], ["found", "0.5"]);
  const bob = await open("bob", name);
  await bob.until("shows the milestone", (view) => view.panels()[0]?.milestones.length === 1);
  expect("who comes later", [(await bob.panels())[0].progress, (await bob.panels())[0].fraction], ["found", "0.5"]);
  await letGo(name, "found");
  for (const tab of [ann, bob]) await tab.until("goes on", (view) => view.panels()[0].progress === "read");
  await letGo(name, "read");
  const { panels, runs } = await agree(name, ann, bob);
  expect("milestones", panels[0].milestones, ["found", "read"]);
  const [{ milestones }] = Object.values(runs);
  expect("what they carry", milestones.map(({ sequence, data }) => [sequence, data ?? null]), [[1, { books: 2 }], [2, null]]);
}

async function errand(name) {
  const [ann, bob] = [await open("ann", name), await open("bob", name)];
  await ann.see((view) => view.levels[0].agent.call("errand", ["e"]));
  for (const tab of [ann, bob]) await tab.hears("e4");
  const late = await open("late", name);
  await late.hears("e4");
  await letGo(name, "e4");
  const { panels } = await agree(name, ann, bob, late);
  expect("it belongs to no call", panels.map(({ call, who, badge, milestones }) => [call, who, badge, milestones]), [[null, "Clerk", "Done", ["half"]]]);
  expect("what was said", said(panels[0]).trim(), all("e", 10));
  expect("where it is shown", (await ann.text(".others h2"))[0], "Errands");
}

async function stopped(name) {
  const [ann, bob] = [await open("ann", name), await open("bob", name)];
  await ann.say("ask say a 20 5 @a4 | say b 20 5 @b4 | say c 5 0");
  for (const tab of [ann, bob]) {
    for (const word of ["a4", "b4"]) await tab.hears(word);
    await tab.shows(["Running", "Running", "Done"]);
  }
  await bob.reload(); // a tab that only watches has nothing to stop; one that was loaded meanwhile has
  await bob.hears("b4");
  await bob.press("Stop");
  const { panels } = await agree(name, ann, bob);
  expect("badges", badges(panels), ["Stopped", "Stopped", "Done"]);
  expect("what was said stays", panels.map((panel) => wordsOf(said(panel))), [all("a", 5), all("b", 5), all("c", 5)]);
  await ann.say("ask say a 10 5");
  const after = await agree(name, ann, bob);
  expect("it goes on", badges(after.panels), ["Stopped", "Stopped", "Done", "Done"]);
}

async function stopped_deep(name) {
  const [ann, bob] = [await open("ann", name), await open("bob", name)];
  await ann.say("manage ask say a 20 5 @a4");
  await ann.shows(["Running"]);
  const [{ run }] = await ann.panels();
  await ann.opens(run);
  await ann.hears("a4", 1);
  await ann.press("Stop", 0);
  await ann.shows(["Stopped"], 1);
  const { panels } = await agree(name, ann, bob);
  expect("badge", badges(panels), ["Stopped"]);
  expect("what was said stays", wordsOf(said((await ann.panels(1))[0])), all("a", 5));
}

async function stopped_inside(name) {
  const [ann, bob] = [await open("ann", name), await open("bob", name)];
  await ann.say("ask say a 20 5 @a4 | say b 20 5 @b4");
  for (const word of ["a4", "b4"]) await ann.hears(word);
  const [{ run }] = await ann.panels();
  await ann.opens(run);
  await ann.reads("a4", 1);
  await ann.press("Stop", 1);
  for (const tab of [ann, bob]) await tab.shows(["Stopped", "Running"]);
  await letGo(name, "b4");
  const { panels, calls, messages } = await agree(name, ann, bob);
  expect("badges", badges(panels), ["Stopped", "Done"]);
  expect("the lead is told, and goes on", [calls.map(([, state]) => state), wordsOf(messages[1].parts.at(-1).text)], [["output-error", "output-available"], all("z", 3)]);
}

async function cleared(name) {
  const [ann, bob] = [await open("ann", name), await open("bob", name)];
  await ann.say("ask say a 5 0 | say b 20 5 @b4");
  for (const tab of [ann, bob]) {
    await tab.hears("b4");
    await tab.shows(["Done", "Running"]);
  }
  const [{ run }] = await bob.panels();
  await bob.opens(run);
  await ann.press("Clear");
  for (const tab of [ann, bob]) {
    await tab.shows([]);
    await tab.until("has closed what was open", (view) => view.all("aside").length === 0);
  }
  const nothing = await agree(name, ann, bob);
  expect("nothing is left", [nothing.messages, nothing.runs], [[], {}]);
  expect("nobody is left", await ann.see((view) => view.levels[0].agent.call("helpers")), []);
  await bob.say("ask say c 10 5");
  const { panels } = await agree(name, ann, bob);
  expect("anew", panels.map((panel) => [panel.badge, wordsOf(said(panel))]), [["Done", all("c", 10)]]);
}

async function opened(name) {
  const [ann, bob] = [await open("ann", name), await open("bob", name)];
  await ann.say("ask say a 10 5 | say b 5 0");
  const before = await agree(name, ann, bob);
  const [{ run }, other] = before.panels;
  await ann.opens(run);
  await ann.reads("a9", 1);
  expect("what it was asked", (await ann.messages(1)).map(({ role, parts }) => [role, wordsOf(parts.map(({ text }) => text ?? "").join(""))]), [["user", "say a 10 5"], ["assistant", all("a", 10)]]);
  await ann.say("say d 20 5 @d4", 1);
  await ann.reads("d4", 1);
  expect("the panels stay", await ann.runs(), before.runs, { quietly: true });
  await letGo(name, "d4");
  await ann.reads("d19", 1);
  await ann.until("is quiet inside", (view) => !view.levels[1].isBusy);
  const after = await agree(name, ann, bob);
  expect("the panels are what they were", after.panels, before.panels, { quietly: true });
  expect("and the chat", after.messages, before.messages, { quietly: true });
  expect("what is said inside", (await ann.messages(1)).map(({ role }) => role[0]).join(""), "uaua");
  await bob.opens(run);
  await bob.reads("d19", 1);
  expect("bob reads the same", await bob.messages(1), await ann.messages(1), { quietly: true });
  await ann.opens(other.run);
  await ann.reads("b4", 1);
  expect("another is another", [await ann.text("aside h3"), (await ann.messages(1)).length], [[], 2]);
}

async function opened_live(name) {
  const [ann, bob] = [await open("ann", name), await open("bob", name)];
  await ann.say("ask look a 40 5 @a4 @a19");
  await ann.hears("a4");
  const [{ run }] = await ann.panels();
  for (const tab of [ann, bob]) await tab.opens(run);
  for (const word of ["a4", "a19"]) {
    for (const tab of [ann, bob]) {
      await tab.hears(word);
      await tab.reads(word, 1);
    }
    await letGo(name, word);
  }
  for (const tab of [ann, bob]) await tab.reads("a39", 1);
  const { panels } = await agree(name, ann, bob);
  for (const tab of [ann, bob]) {
    const [, answer] = await tab.messages(1);
    const texts = answer.parts.filter(({ type }) => type === "text").map(({ text }) => text).join(" ");
    expect(`${tab.label} reads inside what is shown outside`, texts, said(panels[0]), { quietly: true });
  }
}

async function opened_twice(name) {
  const [ann, bob] = [await open("ann", name), await open("bob", name)];
  await ann.say("manage ask say a 20 5 @a4 | say m 5 0");
  await ann.shows(["Running", "Done"]);
  await ann.until("shows that the manager asks", (view) => view.panels()[0].parts.length > 0);
  const [{ run, who, parts }] = await ann.panels();
  expect("the manager", [who, parts.map(([kind]) => kind)], ["Manager", ["tool"]]);
  await ann.opens(run);
  await ann.hears("a4", 1);
  const [inner] = await ann.panels(1);
  expect("the scholar is the manager's", [inner.who, inner.badge, (await ann.panels()).length], ["Scholar", "Running", 2]);
  await ann.opens(inner.run, 1);
  await ann.reads("a4", 2);
  expect("where it is", await ann.see((view) => view.levels[2].agent.path.map(({ agent }) => agent)), ["Lead", "Manager", "Scholar"]);
  await letGo(name, "a4");
  await ann.reads("a19", 2);
  await ann.shows(["Done"], 1);
  await ann.reads("z2", 1);
  await ann.say("say d 5 5", 2);
  await ann.reads("d4", 2);
  await agree(name, ann, bob);
  expect("the scholar's run stays", wordsOf(said((await ann.panels(1))[0])), all("a", 20));
  await bob.opens(run);
  await bob.shows(["Done"], 1);
  expect("who comes later sees the same inside", await bob.runs(1), await ann.runs(1), { quietly: true });
  await bob.opens(inner.run, 1);
  await bob.reads("d4", 2);
  keep(await bob.runs(1));
}

async function closed(name) {
  const ann = await open("ann", name);
  await ann.say("ask say a 5 0");
  const { panels } = await agree(name, ann);
  const ways = {
    Escape: () => ann.key("Escape"),
    button: () => ann.press("Close"),
    backdrop: () => ann.see((view) => void view.all(".backdrop")[0].click()),
  };
  for (const [way, close] of Object.entries(ways)) {
    await ann.opens(panels[0].run);
    await ann.see((view) => void (view.socket = view.levels[1].agent));
    await close();
    await ann.until(`has closed it by ${way}`, (view) => view.all("aside").length === 0 && view.socket.readyState === 3);
  }
  expect("the chat is still there", await ann.calls(), (await agree(name, ann)).calls, { quietly: true });
}

async function refused(name) {
  const ann = await open("ann", name);
  await ann.say("ask say a 5 0");
  const { panels } = await agree(name, ann);
  const wrong = { "a run that was never given": { agent: "Scholar", name: "agent-tool:guessed" }, "a run of another class": { agent: "Manager", name: panels[0].run }, "no class at all": { agent: "Nobody", name: panels[0].run } };
  for (const [what, step] of Object.entries(wrong)) {
    await ann.see((view, step) => void view.open([step]), step);
    const [told] = await ann.until(`is refused ${what}`, (view) => view.text(".refused").length && view.text(".refused"));
    expect(`${what}: said so`, told.startsWith(`${step.agent} cannot be reached`), true);
    expect(`${what}: nothing can be said`, await ann.see((view) => view.all("input", 1)[0].disabled), true);
    expect(`${what}: it is not tried again`, await ann.see((view) => view.levels[1].agent.readyState), 3);
    await ann.press("Close");
  }
  expect("nobody came to be", await ann.see((view) => view.levels[0].agent.call("helpers")), [panels[0].run], { quietly: true });
}

const lives = (text) => new Set(text.match(/\[life \d+\]/g) ?? []).size;

/** Wait until a tab shows that another process goes on with the only run. While a tab connects, its chat may be without the call. */
const goesOn = (tab) => tab.until("goes on", (view) => new Set(view.panels()[0]?.parts.map(([, text]) => text).join().match(/\[life \d+\]/g)).size === 2);

async function killed(name) {
  const [ann, bob] = [await open("ann", name), await open("bob", name)];
  await ann.say("ask think a 20 5 @a9");
  for (const tab of [ann, bob]) await tab.hears("a9");
  await restart("kill");
  for (const tab of [ann, bob]) await goesOn(tab);
  await letGo(name, "a9");
  const { panels, calls } = await agree(name, ann, bob);
  expect("badge", badges(panels), ["Done"]);
  expect("what the model is told was said by one process", [lives(calls[0][2]), wordsOf(calls[0][2])], [1, `scholar: ${all("a", 20)}`]);
  expect("the panel has what was said before, and all that was said again", wordsOf(said(panels[0])), `${all("a", 10)} ${all("a", 20)}`);
}

async function killed_between_steps(name) {
  const ann = await open("ann", name);
  await ann.say("ask look a 20 5 @a9");
  await ann.hears("a9");
  await restart("kill");
  await ann.reload();
  await goesOn(ann);
  await letGo(name, "a9");
  const { panels } = await agree(name, ann);
  expect("parts", panels[0].parts.map(([kind, text]) => [kind, wordsOf(text)]), [["text", "Let me see."], ["tool", "look: it is fine"], ["text", all("a", 10)], ["text", all("a", 20)]]);
}

async function killed_with_two_at_work(name) {
  const [ann, bob] = [await open("ann", name), await open("bob", name)];
  await ann.say("compare say a 20 5 @a4 | say b 20 5 @b4");
  for (const tab of [ann, bob]) for (const word of ["a4", "b4"]) await tab.hears(word);
  await restart("kill");
  await letGo(name, "a4", "b4");
  const { panels, calls } = await agree(name, ann, bob);
  expect("badges", badges(panels), ["Done", "Done"]);
  expect("in order", panels.map((panel) => wordsOf(said(panel))), [`${all("a", 5)} ${all("a", 20)}`, `${all("b", 5)} ${all("b", 20)}`]);
  expect("call", calls.map(([, state]) => state), ["output-available"]);
}

async function killed_deep(name) {
  const [ann, bob] = [await open("ann", name), await open("bob", name)];
  await ann.say("manage ask say a 20 5 @a4");
  await ann.shows(["Running"]);
  const [{ run }] = await ann.panels();
  for (const tab of [ann, bob]) {
    await tab.opens(run);
    await tab.hears("a4", 1);
  }
  await restart("kill");
  await letGo(name, "a4");
  for (const tab of [ann, bob]) await tab.shows(["Done"], 1);
  const { panels } = await agree(name, ann, bob);
  expect("badge", badges(panels), ["Done"]);
  const inside = await ann.panels(1);
  expect("inside", inside.map((panel) => [panel.badge, wordsOf(said(panel))]), [["Done", `${all("a", 5)} ${all("a", 20)}`]]);
  expect("bob sees the same inside", await bob.runs(1), await ann.runs(1), { quietly: true });
  keep(await bob.runs(1));
}

export const TOGETHER = {
  ...{ one, two_in_one_turn, two_under_one_call, one_fails, inner_tool, late_tab, reloaded, dropped, progress, errand },
  ...{ many, stopped, stopped_deep, stopped_inside, cleared, opened, opened_live, opened_twice, closed, refused },
};
/** The server of this one gives up on who is silent for two seconds after a crash. */
async function given_up(name) {
  const [ann, bob] = [await open("ann", name), await open("bob", name)];
  await ann.say("ask say a 20 5 @a4");
  for (const tab of [ann, bob]) await tab.hears("a4");
  await restart("kill");
  for (const tab of [ann, bob]) await tab.shows(["Interrupted"]);
  await ann.reads("z2");
  const before = await agree(name, ann, bob);
  const [{ reason, childStillRunning }] = Object.values(before.runs);
  expect("why", [reason, childStillRunning, before.calls[0][1]], ["no-progress", true, "output-error"]);
  await letGo(name, "a4");
  for (const tab of [ann, bob]) await tab.shows(["Done"]);
  const { panels } = await agree(name, ann, bob);
  expect("what was said", wordsOf(said(panels[0])), `${all("a", 5)} ${all("a", 20)}`);
  expect("it is repaired", panels[0].error, null);
}

export const IMPATIENT = { given_up };
export const ALONE = { killed, killed_between_steps, killed_with_two_at_work, killed_deep };

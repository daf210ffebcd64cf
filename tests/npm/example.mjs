// What tests of the examples' pages share: a Chromium, its tabs, what is wrong with what they show, and pictures of it.
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import puppeteer from "puppeteer-core";

const [host, executablePath, userDataDir, pictures] = process.argv.slice(2);
const QUIET = ["background-networking", "component-update", "default-apps", "domain-reliability", "sync", "extensions"];
const args = ["--no-sandbox", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage", "--font-render-hinting=none"];
const AXE = readFileSync(new URL(import.meta.resolve("axe-core")), "utf8");
const PATIENCE = { timeout: 20_000, polling: 20 };
const orders = createInterface({ input: process.stdin });

export const WIDE = { width: 1280, height: 800 };
export const NARROW = { width: 390, height: 844 };

const browser = await puppeteer.launch({
  ...{ executablePath, userDataDir, headless: true, timeout: 60_000 },
  args: [...args, ...QUIET.map((what) => `--disable-${what}`), "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1"],
});

/** One tab of the page: what a person does with it, and sees in it. */
export class Tab {
  problems = [];

  static async open(path, { size = WIDE, theme = "light", zone = "Europe/Lisbon" } = {}) {
    const tab = new Tab();
    tab.page = await browser.newPage();
    tab.page.on("pageerror", (error) => tab.problems.push(`error: ${error.message}`));
    tab.page.on("console", (said) => ["error", "warn"].includes(said.type()) && tab.problems.push(`${said.type()}: ${said.text()}`));
    await tab.page.setViewport(size);
    await tab.page.emulateTimezone(zone);
    await tab.look(theme);
    await tab.page.goto(`http://${host}${path}`);
    await tab.page.waitForSelector("#said", PATIENCE);
    return tab;
  }

  look = (theme) => this.page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: theme }, { name: "prefers-reduced-motion", value: "reduce" }]);

  async say(text) {
    await this.page.bringToFront();
    await this.page.focus("#said");
    await this.page.keyboard.type(text);
    await this.page.keyboard.press("Enter");
  }

  async press(name) {
    await this.page.bringToFront(); // what lies behind is not drawn, and cannot be clicked
    await (await this.page.waitForSelector(`::-p-aria([name="${name}"][role="button"])`, PATIENCE)).click();
  }

  text = (selector) => this.page.$$eval(selector, (found) => found.map((one) => one.innerText.trim()).join("\n"));
  count = (selector) => this.page.$$eval(selector, (found) => found.length);

  /** Wait until the text of this is there, in so many words. */
  shows(text, selector = "body") {
    const isShown = (selector, text) => [...document.querySelectorAll(selector)].some((one) => one.innerText.includes(text));
    return this.page.waitForFunction(isShown, PATIENCE, selector, text).catch(() => this.fail(`does not show ${JSON.stringify(text)} in ${selector}`));
  }

  lacks(selector) {
    return this.page.waitForFunction((selector) => !document.querySelector(selector), PATIENCE, selector).catch(() => this.fail(`still shows ${selector}`));
  }

  /** Wait until somebody speaks, so many characters or more. */
  speaks = (length, selector = ".is-assistant .text") =>
    this.page.waitForFunction((selector, length) => (([...document.querySelectorAll(selector)].at(-1)?.innerText.length ?? 0) >= length), PATIENCE, selector, length).catch(() => this.fail("does not speak"));

  /** Wait until nothing is being said. */
  rests = () => this.page.waitForSelector('[role="log"][aria-busy="false"]', PATIENCE).catch(() => this.fail("does not rest"));

  async fail(what) {
    throw new Error(`It ${what}. It shows:\n${await this.text("body")}`);
  }

  /** Return what is wrong with the page for people who hear it, see little of it, or have a small screen. */
  async flaws() {
    await this.page.evaluate(AXE);
    const { violations } = await this.page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
    const bad = violations.filter(({ impact }) => ["serious", "critical"].includes(impact));
    const found = bad.map(({ id, nodes }) => `${id}: ${nodes.map(({ html, failureSummary }) => `${html} ${failureSummary}`).join("; ")}`);
    const isTooWide = await this.page.evaluate(() => document.documentElement.scrollWidth > window.innerWidth);
    return isTooWide ? [...found, "it has to be scrolled sideways"] : found;
  }

  picture = (name) => this.page.screenshot({ path: `${pictures}/${name}.png` });

  /** Look at the page in every way: wide and narrow, light and dark. Take pictures of it under this name. */
  async pictured(name, { before } = {}) {
    const found = [];
    for (const [width, size] of [["wide", WIDE], ["narrow", NARROW]])
      for (const theme of ["light", "dark"]) {
        await this.page.setViewport({ ...size, deviceScaleFactor: 2 });
        await this.look(theme);
        await before?.(this);
        await this.page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
        found.push(...(await this.flaws()).map((flaw) => `${width} ${theme}: ${flaw}`));
        await this.picture(`${name}-${width}-${theme}`);
      }
    await this.page.setViewport(WIDE);
    await this.look("light");
    return found;
  }
}

/** What the server has stored of a conversation. */
export const stored = async (agent, name) => (await fetch(`http://${host}/agents/${agent}/${name}/get-messages`)).json();

/** Ask whoever started us to kill the server, and to start it again. */
export async function restart() {
  const done = new Promise((resolve) => orders.once("line", resolve));
  console.log(JSON.stringify({ please: "kill" }));
  await done;
}

/** Run scenarios, one after the other: each is given its name, and returns what it saw. Prints all of it. */
export async function run(scenarios) {
  const seen = {};
  try {
    for (const [name, work] of Object.entries(scenarios)) {
      const tabs = [];
      const open = async (path, options) => (tabs.push(await Tab.open(path, options)), tabs.at(-1));
      try {
        seen[name] = { saw: await work(open, name) };
      } catch (error) {
        seen[name] = { failed: String(error.stack) };
      }
      seen[name].problems = tabs.flatMap(({ problems }) => problems);
      for (const { page } of tabs) await page.close();
    }
  } finally {
    await browser.close();
  }
  process.stdout.write(`${JSON.stringify(seen)}\n`, () => process.exit(0));
}

// The page of runs-page.js, in Chromium: `node runs-browser.mjs HOST CHROMIUM FOLDER together|alone|impatient [SCENARIO]…`.
import puppeteer from "puppeteer-core";
import { host, run } from "./recording.mjs";
import { ALONE, IMPATIENT, TOGETHER, Tab } from "./runs-scenarios.mjs";

const [executablePath, userDataDir, what, ...only] = process.argv.slice(3);
const QUIET = ["background-networking", "component-update", "default-apps", "domain-reliability", "sync", "extensions"];
const args = ["--no-sandbox", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage"];
// A tab that nobody looks at is to work as fast as any other.
const EAGER = ["background-timer-throttling", "renderer-backgrounding", "backgrounding-occluded-windows"];
const browser = await puppeteer.launch({
  ...{ executablePath, userDataDir, headless: true, timeout: 120_000, protocolTimeout: 300_000 },
  args: [...args, ...[...QUIET, ...EAGER].map((what) => `--disable-${what}`), "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1"],
});

class Opened extends Tab {
  async load() {
    this.page ??= await browser.newPage();
    await this.page.goto(`http://${host}/pages/runs.html?name=${this.name}`);
    this.view = await this.page.evaluateHandle(() => window.view);
  }

  see = (look, ...args) => this.page.evaluate(look, this.view, ...args);

  key = (name) => this.page.keyboard.press(name);

  unload = () => this.page.close();

  async reload() {
    await this.load();
    await this.connected();
  }
}

Tab.make = (label, name) => new Opened(label, name);
const end = async ({ tabs = [] }) => {
  for (const tab of [...tabs]) await tab.close();
};
const scenarios = { together: TOGETHER, alone: ALONE, impatient: IMPATIENT }[what];
const options = { end, only, patience: 300_000, together: what === "together" ? 3 : 1, finish: () => browser.close() };
await run(scenarios, options);

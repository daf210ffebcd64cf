// The page of runs-page.js, in jsdom: `node runs.mjs HOST MAJOR together|alone|impatient [SCENARIO]…`, where MAJOR is the AI SDK's.
import { JSDOM } from "jsdom";
import { host, recorded, run, scenario } from "./recording.mjs";
import { ALONE, IMPATIENT, TOGETHER, Tab } from "./runs-scenarios.mjs";

const [major, what, ...only] = process.argv.slice(3);
const { window } = new JSDOM("<!doctype html>", { url: `http://${host}/` });
Object.assign(globalThis, { window, document: window.document });
const QUICK = { minReconnectionDelay: 50, maxReconnectionDelay: 300, minUptime: 100 };
let opened = 0;

/** A tab: its own copy of every module, and its own part of one document. */
class Rendered extends Tab {
  async load() {
    const { mount } = await import(`./made/runs-${major}.mjs?${++opened}`);
    this.element = document.body.appendChild(document.createElement("div"));
    this.page = mount(this.element, { name: this.name, host, WebSocket: recorded(this.label), ...QUICK });
  }

  async see(look, ...args) {
    const seen = await look(this.page.view, ...args);
    return seen === undefined ? undefined : JSON.parse(JSON.stringify(seen));
  }

  // Many tabs share one document, of which one part only can have the focus.
  key = (name) => this.element.querySelector("aside").dispatchEvent(new window.KeyboardEvent("keydown", { key: name, bubbles: true }));

  unload() {
    this.page.unmount();
    this.element.remove();
  }
}

Tab.make = (label, name) => new Rendered(label, name);
const end = async ({ tabs = [] }) => {
  for (const tab of [...tabs]) await tab.close();
};
// Who restarts the server does so for everybody: those run alone.
const scenarios = { together: TOGETHER, alone: ALONE, impatient: IMPATIENT }[what];
const options = { end, only, patience: 300_000, together: what === "together" ? 4 : 1 };
await run(scenarios, options);

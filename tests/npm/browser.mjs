// Opens page.js in a real Chromium: `node browser.mjs HOST CHROMIUM FOLDER`. Prints what the tabs showed.
import puppeteer from "puppeteer-core";

const [host, executablePath, userDataDir] = process.argv.slice(2);
const QUIET = ["background-networking", "component-update", "default-apps", "domain-reliability", "sync", "extensions"];
const args = ["--no-sandbox", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage"];
const browser = await puppeteer.launch({
  ...{ executablePath, userDataDir, headless: true, timeout: 60_000 },
  args: [...args, ...QUIET.map((what) => `--disable-${what}`), "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1"],
});
const seen = {};

async function open(query, base = host) {
  const tab = await browser.newPage();
  await tab.goto(`http://${base}/pages/page.html?${new URLSearchParams(query)}`);
  return tab;
}

const shown = (tab, id) => tab.$eval(`#${id}`, (element) => element.textContent);

async function shows(tab, id, text) {
  const isShown = (id, text) => document.getElementById(id)?.textContent === text;
  await tab.waitForFunction(isShown, { timeout: 20_000 }, id, text).catch(() => {});
  return shown(tab, id);
}

try {
  const one = await open({ reporter: "é 50%" });
  seen["one at first"] = [await shows(one, "count", "0"), await shown(one, "who")];
  const two = await open({ reporter: "é 50%" });
  await shows(two, "count", "0");
  await one.$eval("#more", (button) => button.click());
  seen["two after one"] = await shows(two, "count", "1");
  await two.$eval("#bump", (button) => button.click());
  seen["one after two"] = await shows(one, "count", "2");
  await two.reload();
  seen["two again"] = await shows(two, "count", "2");
  const missing = await open({ reporter: "missing" });
  seen["a refused one"] = await shows(missing, "error", "4404");
  const foreign = await open({ reporter: "é 50%", host }, host.replace("127.0.0.1", "localhost"));
  seen["from another origin"] = await shows(foreign, "error", "4403");
} finally {
  await browser.close();
}
console.log(JSON.stringify(seen));

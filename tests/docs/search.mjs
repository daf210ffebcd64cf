// Ask the search of the built site, with the site's own worker and index: node search.mjs SITE QUERY…
// Prints the pages that each query finds, best first, as one line of JSON.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { runInNewContext } from "node:vm";

const [site, ...queries] = process.argv.slice(2);
const READY = 1;
const RESULT = 3;
const index = JSON.parse(readFileSync(join(site, "search.json"), "utf8"));
const workers = join(site, "assets/javascripts/workers");
const worker = readdirSync(workers).find((name) => name.startsWith("search."));

let answer;
const self = { postMessage: (message) => answer(message) };
runInNewContext(readFileSync(join(workers, worker), "utf8"), { self, Intl });

async function ask(message, expected) {
  const said = await new Promise((resolve) => {
    answer = resolve;
    self.onmessage({ data: message });
  });
  if (said.type !== expected) throw new Error(`the search worker answered ${JSON.stringify(said)}`);
  return said.data;
}

await ask({ type: 0, data: index }, READY);
const found = {};
for (const input of queries) {
  const { items } = await ask({ type: 2, data: { input } }, RESULT);
  found[input] = items.map(({ id }) => index.items[id].location);
}
console.log(JSON.stringify(found));

// What became of calls that were replayed, as far as the agent records it.

import { ask } from "./api";
import { plural } from "./format";
import { isBad, isOver } from "./spans";
import type { Address, Page, Work } from "./types";

const EVERY = 500;
const LONGEST = 30_000;

/** Return what says how the calls of these methods end that are recorded from now on. */
export async function watchReplay(address: Address, methods: string[]): Promise<(done: number) => AsyncGenerator<string>> {
  const works = async () => (await ask<Page<Work>>("works", { address, limit: 100 })).rows;
  const before = Math.max(0, ...(await works()).map((one) => one.number)); // those of executed runs are below 0
  return async function* (done: number) {
    const what = done === 1 ? `${methods[0]}()` : plural(done, "call");
    for (let waited = 0; waited < LONGEST; waited += EVERY) {
      const found = (await works()).filter((one) => one.kind === "call" && one.number > before && methods.includes(one.name));
      const over = found.filter(isOver);
      const failed = over.filter(isBad).length;
      if (over.length >= done) {
        if (done === 1) yield failed ? `${what} failed again. Its dead letter has the new error.` : `${what} succeeded.`;
        else yield `${plural(done - failed, "call")} succeeded${failed ? `, ${failed} failed again` : ""}.`;
        return;
      }
      yield found.length ? `${what}: ${over.length ? `${over.length} ended, ` : ""}in progress …` : `${what} will be called again …`;
      await new Promise((go) => setTimeout(go, EVERY));
    }
    yield `${what}: not ended yet. See the timeline of the agent.`;
  };
}

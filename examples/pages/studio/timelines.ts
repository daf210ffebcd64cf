// The records of a piece of work, with those of the agents that worked for it. Loaded again while it is unfinished.

import { useCallback, useEffect, useState } from "react";
import { type AdminError, events } from "./api";
import { asError, useIsVisible } from "./hooks";
import { isOver, Spans } from "./spans";
import type { Address, Span } from "./types";

const EVERY = 2000;
const EVERY_LARGE = 15_000;
const LARGE = 2000;

export type Timeline = { spans: Spans | null; root: Span | null; isWhole: boolean; hasMore: boolean; error: AdminError | null; reload: () => void };
type State = Omit<Timeline, "reload">;

const EMPTY: State = { spans: null, root: null, isWhole: false, hasMore: false, error: null };

export function useTimeline(address: Address, work: string): Timeline {
  const [state, setState] = useState<State>(EMPTY);
  const [round, setRound] = useState(0);
  const isVisible = useIsVisible();
  useEffect(() => setState(EMPTY), [address, work]);
  useEffect(() => {
    if (!isVisible) return;
    const aborter = new AbortController();
    let timer = 0;
    const load = async () => {
      let isLive = true;
      let spans = new Spans();
      try {
        for await (const { name, data } of events("spans", { address, work, below: false }, aborter.signal)) if (name === "spans") spans.add(data);
        const own = spans.agents.get(address)?.spans ?? [];
        const root = own.find(({ parent }) => parent === null) ?? own[0] ?? null;
        let hasMore = false;
        if (root && own.some(({ kind }) => kind === "run")) {
          const all = (spans = new Spans());
          const params = { address, work, below: true, from: root.began_at, to: root.ended_at };
          for await (const { name, data } of events("spans", params, aborter.signal)) {
            if (name === "spans") all.add(data);
            else if (name === "end") hasMore = data.more;
            // The first time, what has arrived is shown. Later, the old rows stay until the new ones are complete.
            setState((old) => (old.isWhole ? old : { ...old, spans: all, root, error: null }));
          }
        }
        if (aborter.signal.aborted) return;
        isLive = root !== null && !isOver(root);
        setState({ spans, root, isWhole: true, hasMore, error: null });
      } catch (error) {
        if (aborter.signal.aborted) return;
        setState((old) => ({ ...old, error: asError(error) }));
      }
      if (isLive) timer = window.setTimeout(load, spans.count > LARGE ? EVERY_LARGE : EVERY);
    };
    void load();
    return () => {
      aborter.abort();
      window.clearTimeout(timer);
    };
  }, [address, work, round, isVisible]);
  return { ...state, reload: useCallback(() => setRound((one) => one + 1), []) };
}

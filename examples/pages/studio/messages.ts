// The messages of an agent: the newest page first, older ones when they are asked for, new ones as they come.

import { useCallback, useEffect, useRef, useState } from "react";
import { type AdminError, ask } from "./api";
import { asError, useIsVisible } from "./hooks";
import { turnId } from "./spans";
import type { MessageRow, Page, Span } from "./types";

const PAGE = 30;
const MOST_NEW_PAGES = 10;
const EVERY = 1500;

export type Transcript = { rows: MessageRow[]; total: number; error: AdminError | null; isLoaded: boolean; hasEarlier: boolean; earlier: () => Promise<void>; turns: Span[] };

/** `pulse` changes when the agent did something. While it is awake, messages may come at any time. */
export function useTranscript(address: string, pulse: string, isAwake: boolean): Transcript {
  const [state, setState] = useState({ rows: [] as MessageRow[], total: 0, isLoaded: false, error: null as AdminError | null, turns: [] as Span[] });
  const rows = useRef(new Map<number, MessageRow>());
  const cursor = useRef<string | null>(null);
  const isVisible = useIsVisible();
  const publish = (more: Partial<typeof state>) => setState((old) => ({ ...old, error: null, isLoaded: true, ...more, rows: [...rows.current.values()].sort((a, b) => a.position - b.position) }));
  useEffect(() => {
    if (!isVisible) return;
    const aborter = new AbortController();
    let timer = 0;
    let said = "";
    const refresh = async () => {
      try {
        let after: string | null = null;
        const isFirst = !rows.current.size;
        let page: Page<MessageRow>;
        const known = Math.max(0, ...rows.current.keys());
        const fresh: MessageRow[] = [];
        for (let at = 0; at < MOST_NEW_PAGES; at++) {
          page = await ask<Page<MessageRow>>("transcript", { address, after, limit: PAGE }, aborter.signal);
          fresh.push(...page.rows);
          after = page.next;
          if (isFirst || !after || (page.rows.at(-1)?.position ?? 0) <= known) break;
        }
        const works = await ask<Page<Span>>("works", { address, limit: 100 }, aborter.signal);
        const now = JSON.stringify([fresh, works.rows]);
        if (now !== said) {
          const shown = new Set(fresh.map(({ position }) => position));
          const oldest = Math.min(...shown);
          const isOther = page!.total! < rows.current.size || [...rows.current.keys()].some((position) => position >= oldest && !shown.has(position));
          if (isOther) rows.current.clear(); // the conversation was cleared, or another branch is active
          for (const row of fresh) rows.current.set(row.position, row);
          if (isFirst || isOther) cursor.current = page!.next;
          publish({ total: page!.total ?? 0, turns: works.rows.filter(({ kind }) => kind === "turn") });
        }
        said = now;
      } catch (error) {
        if (!aborter.signal.aborted) setState((old) => ({ ...old, error: asError(error) }));
      }
      if (isAwake && !aborter.signal.aborted) timer = window.setTimeout(refresh, EVERY);
    };
    void refresh();
    return () => {
      aborter.abort();
      window.clearTimeout(timer);
    };
  }, [address, pulse, isAwake, isVisible]);
  const earlier = useCallback(async () => {
    if (!cursor.current) return;
    try {
      const page = await ask<Page<MessageRow>>("transcript", { address, after: cursor.current, limit: PAGE });
      for (const row of page.rows) rows.current.set(row.position, row);
      cursor.current = page.next;
      publish({});
    } catch (error) {
      setState((old) => ({ ...old, error: asError(error) }));
    }
  }, [address]);
  return { ...state, hasEarlier: cursor.current !== null, earlier };
}

/** The turn that answers a message of a user, if it is one of these. */
export const turnOf = (row: MessageRow, turns: Span[]): Span | undefined => (row.role === "user" ? turns.find((turn) => turnId(turn) === row.turn) : undefined);

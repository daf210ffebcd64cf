// A search of agents. What is found is added as it arrives; a new text ends the search before.

import { useCallback, useEffect, useState } from "react";
import { type AdminError, events } from "./api";
import { asError } from "./hooks";
import type { AgentRow } from "./types";

const PAUSE = 250;
const MOST = 500;

type End = { searched: number; more: boolean; unanswered: string[] };
export type Search = { rows: AgentRow[]; end: End | null; error: AdminError | null; retry: () => void };

export function useFind(text: string, status: string): Search {
  const [state, setState] = useState<Omit<Search, "retry">>({ rows: [], end: null, error: null });
  const [round, setRound] = useState(0);
  useEffect(() => {
    const aborter = new AbortController();
    setState((old) => ({ ...old, end: null }));
    const timer = window.setTimeout(async () => {
      const rows: AgentRow[] = [];
      try {
        for await (const { name, data } of events("find", { text, status: status || null, limit: MOST }, aborter.signal)) {
          if (name === "rows") rows.push(...data.rows);
          setState({ rows: [...rows], end: name === "end" ? data : null, error: null });
        }
      } catch (error) {
        if (!aborter.signal.aborted) setState({ rows: [], end: null, error: asError(error) });
      }
    }, PAUSE);
    return () => {
      window.clearTimeout(timer);
      aborter.abort();
    };
  }, [text, status, round]);
  return { ...state, retry: useCallback(() => setRound((one) => one + 1), []) };
}

// React hooks for answers, pages and streams. None of them works while the tab is hidden.

import { useCallback, useEffect, useRef, useState, useSyncExternalStore } from "react";
import { AdminError, ask, type Event, events } from "./api";
import { takeSlot } from "./slots";
import type { Page } from "./types";

const RETRY = 2000;
/** Streams whose first event has everything: without a place for a stream, that one is read again and again. */
const WHOLE = ["watch"];
const BUSY = new AdminError("Other windows of the studio use all connections that the browser opens to this server. This continues when one of them is closed.", "busy", 0);

const onVisible = (tell: () => void) => {
  document.addEventListener("visibilitychange", tell);
  return () => document.removeEventListener("visibilitychange", tell);
};
export const useIsVisible = () => useSyncExternalStore(onVisible, () => document.visibilityState === "visible");

export const asError = (error: unknown) => (error instanceof AdminError ? error : new AdminError(String(error), "error", 0));

export type Loaded<Result> = { data: Result | null; error: AdminError | null; reload: () => void };

/** The result of an endpoint, loaded again every so many milliseconds. With `null` instead of parameters, nothing is loaded. */
export function useAnswer<Result>(endpoint: string, params: object | null, every = 0): Loaded<Result> {
  const key = params && JSON.stringify(params);
  const [state, setState] = useState<{ key: string | null; data: Result | null; error: AdminError | null }>({ key: null, data: null, error: null });
  const [round, setRound] = useState(0);
  const isVisible = useIsVisible();
  const reload = useCallback(() => setRound((one) => one + 1), []);
  useEffect(() => {
    if (key === null || !isVisible) return;
    const aborter = new AbortController();
    let timer = 0;
    const load = async () => {
      try {
        const data = await ask<Result>(endpoint, JSON.parse(key), aborter.signal);
        if (!aborter.signal.aborted) setState({ key, data, error: null });
      } catch (error) {
        if (aborter.signal.aborted) return;
        setState((old) => ({ key, data: old.key === key ? old.data : null, error: asError(error) }));
      }
      if (every) timer = window.setTimeout(load, every);
    };
    void load();
    return () => {
      aborter.abort();
      window.clearTimeout(timer);
    };
  }, [endpoint, key, every, round, isVisible]);
  return state.key === key ? { data: state.data, error: state.error, reload } : { data: null, error: null, reload };
}

export type Pages<Row> = { rows: Row[]; total: number | null; first: Page<Row> | null; error: AdminError | null; hasMore: boolean; isLoading: boolean; more: () => void; reload: () => void };

/** The rows of an endpoint that lists by pages: the first page at once, others when `more` is called. */
export function usePages<Row>(endpoint: string, params: object, limit = 100): Pages<Row> {
  const key = JSON.stringify({ ...params, limit });
  const [pages, setPages] = useState<{ key: string; pages: Page<Row>[]; error: AdminError | null }>({ key, pages: [], error: null });
  const [isLoading, setLoading] = useState(true);
  const [round, setRound] = useState(0);
  const current = useRef<AbortController | null>(null);
  const load = useCallback(async (after: string | null, before: Page<Row>[]) => {
    current.current?.abort();
    const aborter = (current.current = new AbortController());
    setLoading(true);
    try {
      const page = await ask<Page<Row>>(endpoint, { ...JSON.parse(key), after }, aborter.signal);
      if (!aborter.signal.aborted) setPages({ key, pages: [...before, page], error: null });
    } catch (error) {
      if (aborter.signal.aborted) return;
      setPages((old) => ({ key, pages: old.key === key ? old.pages : [], error: asError(error) }));
    }
    setLoading(false);
  }, [endpoint, key]);
  useEffect(() => {
    void load(null, []);
    return () => current.current?.abort();
  }, [load, round]);
  const own = pages.key === key ? pages : { pages: [], error: null };
  const last = own.pages.at(-1);
  return {
    rows: own.pages.flatMap((page) => page.rows),
    total: last?.total ?? null,
    first: own.pages[0] ?? null,
    error: own.error,
    hasMore: Boolean(last?.next),
    isLoading: isLoading || pages.key !== key,
    more: () => void (last?.next && !isLoading && load(last.next, own.pages)),
    reload: useCallback(() => setRound((one) => one + 1), []),
  };
}

/** Load a list again every so many milliseconds, as long as only its first page is shown. */
export function useRefresh<Row>({ rows, reload }: Pages<Row>, limit: number, every: number): void {
  const isVisible = useIsVisible();
  const isShort = rows.length <= limit; // pages that were added would close again
  useEffect(() => {
    if (!isVisible || !isShort) return;
    const timer = window.setInterval(reload, every);
    return () => window.clearInterval(timer);
  }, [isVisible, isShort, reload, every]);
}

/** Read a stream for as long as the component is shown; a stream that breaks off is opened again. Returns why it is not open. */
export function useStream(endpoint: string, params: object | null, onEvent: (event: Event) => void, onOpen?: () => void): AdminError | null {
  const key = params && JSON.stringify(params);
  const [error, setError] = useState<AdminError | null>(null);
  const isVisible = useIsVisible();
  const handlers = useRef({ onEvent, onOpen });
  handlers.current = { onEvent, onOpen };
  useEffect(() => {
    if (key === null || !isVisible) return;
    const aborter = new AbortController();
    const read = async () => {
      while (!aborter.signal.aborted) {
        const leave = await takeSlot();
        try {
          if (!leave && !WHOLE.includes(endpoint)) throw BUSY;
          if (aborter.signal.aborted) return;
          handlers.current.onOpen?.();
          let isWhole = false;
          for await (const event of events(endpoint, JSON.parse(key), aborter.signal)) {
            if (aborter.signal.aborted) return;
            setError(null);
            handlers.current.onEvent(event);
            if ((isWhole = !leave)) break;
          }
          if (!isWhole) return;
        } catch (failure) {
          if (aborter.signal.aborted) return;
          setError(asError(failure));
          if (failure instanceof AdminError && failure.status >= 400 && failure.status < 500) return;
        } finally {
          leave?.();
        }
        await new Promise((go) => setTimeout(go, RETRY));
      }
    };
    void read();
    return () => aborter.abort();
  }, [endpoint, key, isVisible]);
  return error;
}

/** The time, as long as something on the screen counts it. */
export function useNow(every: number | null): number {
  const [now, setNow] = useState(() => Date.now() / 1000);
  const isVisible = useIsVisible();
  useEffect(() => {
    if (!every || !isVisible) return;
    const timer = window.setInterval(() => setNow(Date.now() / 1000), every);
    return () => window.clearInterval(timer);
  }, [every, isVisible]);
  return now;
}

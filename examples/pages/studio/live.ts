// What a running turn streams and has not stored as a message yet.

import { useEffect, useState } from "react";
import { ask } from "./api";
import { type ChunkRow, grown, type Part } from "./chunks";
import { useIsVisible } from "./hooks";
import type { Address, Page } from "./types";

const EVERY = 400;
const LIMIT = 200;

/** The parts of a turn, as they grow; those of the last turn stay until another begins. */
export function useLive(address: Address, work: string | null): Part[] {
  const [parts, setParts] = useState<Part[]>([]);
  const isVisible = useIsVisible();
  useEffect(() => {
    if (work === null || !isVisible) return;
    const aborter = new AbortController();
    let timer = 0;
    let after: string | null = null;
    let total = 0;
    let all: Part[] = [];
    const read = async () => {
      try {
        const page: Page<ChunkRow> = await ask<Page<ChunkRow>>("chunks", { address, work, after, limit: LIMIT }, aborter.signal);
        if ((page.total ?? 0) < total) (all = []), (after = null); // what was streamed is a message now
        else {
          all = grown(all, page.rows.flatMap(({ chunks }) => chunks));
          after = page.rows.length ? String(page.rows.at(-1)!.number) : after;
        }
        total = page.total ?? 0;
        if (!aborter.signal.aborted) setParts(all);
        timer = window.setTimeout(read, page.next ? 0 : EVERY);
      } catch {
        if (!aborter.signal.aborted) timer = window.setTimeout(read, 5 * EVERY);
      }
    };
    void read();
    return () => {
      aborter.abort();
      window.clearTimeout(timer);
    };
  }, [address, work, isVisible]);
  return parts;
}

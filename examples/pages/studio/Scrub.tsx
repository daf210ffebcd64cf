// What a turn, a step or a run had streamed at a moment: a slider from its first to its last chunk.

import { useEffect, useRef, useState } from "react";
import { type AdminError, ask } from "./api";
import { type ChunkRow, grown, type Part } from "./chunks";
import { count, duration } from "./format";
import { asError } from "./hooks";
import { ErrorNote, Loading, Needs, Nothing } from "./parts";
import { StreamedPart } from "./StreamedPart";
import { useSession } from "./session";
import type { Address, Page } from "./types";

const PAGE = 100;
const MOST_PAGES = 5;
const FRESH = 2000;

/** The rows that have been loaded: at most a few pages of them, and what was made before the first of each page. */
class Recording {
  private readonly pages = new Map<number, { rows: ChunkRow[]; until: number }>();
  /** What all pages before one made, and where that one begins. */
  private readonly starts: { after: string | null; parts: Part[] }[] = [{ after: null, parts: [] }];
  total = 0;

  constructor(private readonly params: object) {}

  /** Load what is needed to know the state at a row; earlier pages are read one after the other, and not kept. */
  async at(index: number, signal: AbortSignal): Promise<{ row: ChunkRow; parts: Part[] } | null> {
    const wanted = Math.floor(index / PAGE);
    for (let page = Math.min(wanted, this.starts.length - 1); page <= wanted; page++) {
      const known = this.pages.get(page);
      const rows = known && performance.now() < known.until ? known.rows : await this.load(page, signal);
      if (page === wanted) {
        const row = rows[index - page * PAGE];
        return row ? { row, parts: grown(this.starts[page].parts, rows.slice(0, index - page * PAGE + 1).flatMap(({ chunks }) => chunks)) } : null;
      }
      if (!this.starts[page + 1]) return null;
    }
    return null;
  }

  private async load(page: number, signal: AbortSignal): Promise<ChunkRow[]> {
    const start = this.starts[page];
    const found = await ask<Page<ChunkRow>>("chunks", { ...this.params, after: start.after, limit: PAGE }, signal);
    this.total = found.total ?? 0;
    this.pages.set(page, { rows: found.rows, until: found.next ? Infinity : performance.now() + FRESH }); // the last one may grow
    if (found.next) {
      this.starts[page + 1] = { after: found.next, parts: grown(start.parts, found.rows.flatMap(({ chunks }) => chunks)) };
    }
    for (const old of this.pages.keys()) if (this.pages.size > MOST_PAGES) this.pages.delete(old);
    return found.rows;
  }
}

type Props = { address: Address; work: string; from?: number | null; to?: number | null; start: number };

export function Scrub(props: Props) {
  if (!useSession().can("content")) return <Needs scope="content" what="What was streamed is shown" />;
  return <Loaded key={JSON.stringify(props)} {...props} />;
}

function Loaded({ address, work, from, to, start }: Props) {
  const [recording] = useState(() => new Recording({ address, work, from, to }));
  const [index, setIndex] = useState(0);
  const [shown, setShown] = useState<{ index: number; row: ChunkRow; parts: Part[] } | "nothing" | null>(null);
  const [error, setError] = useState<AdminError | null>(null);
  const [round, setRound] = useState(0);
  const frame = useRef(0);
  useEffect(() => {
    const aborter = new AbortController();
    frame.current = requestAnimationFrame(async () => {
      try {
        const found = await recording.at(index, aborter.signal);
        if (aborter.signal.aborted) return;
        setShown((old) => (found ? { index, ...found } : index ? old : "nothing"));
        setError(null);
      } catch (failed) {
        if (!aborter.signal.aborted) setError(asError(failed));
      }
    });
    return () => {
      cancelAnimationFrame(frame.current);
      aborter.abort();
    };
  }, [recording, index, round]);
  const { total } = recording;
  const time = shown && shown !== "nothing" ? `${duration(shown.row.at - start)} after the start` : "";
  const place = `Chunk ${count(index + 1)} of ${count(total)}`;
  return (
    <section aria-labelledby="scrub">
      <h2 id="scrub">What was streamed</h2>
      {error && <ErrorNote error={error} onRetry={() => setRound(round + 1)} />}
      {shown === null && !error && <Loading what="Loading the chunks" />}
      {shown === "nothing" && <Nothing title="No chunks are kept">A turn that a client began keeps them until its message is complete. A run of a sub-agent keeps them with the run.</Nothing>}
      {shown !== null && shown !== "nothing" && (
        <>
          <div className="scrub">
            <input type="range" aria-label="Moment" min={0} max={total - 1} value={index} aria-valuetext={`${place}, ${time}`} onChange={(event) => setIndex(Number(event.target.value))} />
            <p className="muted num"><span>{place}</span><span>{time}</span></p>
          </div>
          <div className="scrub-parts" role="group" aria-label="At this moment" tabIndex={0}>{shown.parts.length ? shown.parts.map((part, at) => <StreamedPart key={at} part={part} />) : <p className="muted">Nothing yet</p>}</div>
        </>
      )}
    </section>
  );
}

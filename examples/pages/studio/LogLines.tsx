// The log of the processes, or of one agent, as it is written.

import { useEffect, useLayoutEffect, useRef, useState } from "react";
import { clock, count, fullTime } from "./format";
import { useStream } from "./hooks";
import { AgentName, ErrorNote, Field, Loading, Needs, Nothing } from "./parts";
import { useSession } from "./session";
import type { LogRecord } from "./types";

const MOST = 2000;
const LEVELS = ["debug", "info", "warning", "error"];

export function LogLines({ address }: { address?: string }) {
  return useSession().can("content") ? <Lines address={address} /> : <Needs scope="content" what="The log is shown" />;
}

function Lines({ address }: { address?: string }) {
  const [level, setLevel] = useState("info");
  const [text, setText] = useState("");
  const [records, setRecords] = useState<LogRecord[] | null>(null);
  const waiting = useRef<LogRecord[]>([]);
  const box = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const error = useStream("logs", { address, level }, ({ name, data }) => {
    if (name !== "records") return;
    if (!waiting.current.length) requestAnimationFrame(() => {
      const fresh = waiting.current;
      waiting.current = [];
      setRecords((old) => [...(old ?? []), ...fresh].slice(-MOST));
    });
    waiting.current.push(...data.records);
  }, () => ((waiting.current = []), setRecords([])));
  useEffect(() => setRecords(null), [level, address]);
  useLayoutEffect(() => {
    if (follows.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [records, text]);
  const found = (records ?? []).filter((one) => !text || `${one.message} ${one.logger} ${one.address ?? ""}`.toLowerCase().includes(text.toLowerCase()));
  const onScroll = () => void (follows.current = box.current!.scrollHeight - box.current!.scrollTop - box.current!.clientHeight < 40);
  return (
    <>
      <div className="row search">
        <Field label="Filter the log" unseen>{(id) => <input id={id} type="search" value={text} placeholder="Filter" autoComplete="off" onChange={(event) => setText(event.target.value)} />}</Field>
        <Field label="Level" unseen>{(id) => <select id={id} value={level} onChange={(event) => setLevel(event.target.value)}>{LEVELS.map((one) => <option key={one}>{one}</option>)}</select>}</Field>
      </div>
      {error && <ErrorNote error={error} />}
      {!error && records === null && <Loading what="Reading the log" />}
      {!error && records !== null && !found.length && <Nothing title={records.length ? "No line has this text" : "No lines yet"}>Each process keeps its last lines. New ones appear as they are written.</Nothing>}
      {found.length > 0 && (
        <div className="fills log-lines" role="log" aria-label="Log" tabIndex={0} ref={box} onScroll={onScroll}>
          {records!.length === MOST && <p className="muted">Only the last {count(MOST)} lines are shown.</p>}
          {found.map((one) => (
            <div key={`${one.worker} ${one.number}`} className={`log-line is-${one.level}`}>
              <time title={fullTime(one.time)}>{clock(one.time)}</time>
              <span className="log-level">{one.level}</span>
              <span className="log-text">{one.message}{one.address && !address && <> <AgentName address={one.address} tab="log" /></>}{one.exception && <details><summary>Traceback</summary><pre tabIndex={0}>{one.exception}</pre></details>}</span>
            </div>
          ))}
        </div>
      )}
    </>
  );
}

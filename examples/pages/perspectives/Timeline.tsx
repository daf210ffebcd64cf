// One lane for each run of a discussion: when it started, and how it ended. The text has all the information, for screen readers.
import { type CSSProperties, useEffect, useState } from "react";
import { Square } from "../design";
import type { Discussion, Lane } from "./panel";

type Props = { discussion: Discussion; ahead: number; onDismiss: (lane: Lane) => void };

export function Timeline({ discussion, ahead, onDismiss }: Props) {
  const { lanes } = discussion;
  const isLive = lanes.some(({ ended }) => ended === null);
  const now = useNow(isLive) - ahead;
  const zero = Math.min(...lanes.map(({ began }) => began));
  const span = Math.max(0.5, ...lanes.map(({ ended }) => (ended ?? now) - zero));
  const at = (time: number) => `${(100 * Math.min(Math.max(time - zero, 0), span)) / span}%`;
  const decided = lanes.find(({ run }) => run === decidingRun(lanes));
  return (
    <figure className="timeline" aria-label={`Timeline of “${discussion.question}”`} aria-live="off" data-testid="timeline">
      <ol className="lanes">
        {lanes.map((lane) => (
          <li key={lane.run} className={`lane is-${lane.status}`} data-who={lane.who} data-status={lane.status}>
            <span className="lane-who">{lane.who}</span>
            <span className="lane-track" aria-hidden="true">
              <span className="lane-bar" style={{ "--from": at(lane.began), "--to": at(lane.ended ?? now) } as CSSProperties} />
              {decided?.ended && lane.who !== "Chair" && <i className="lane-mark" style={{ left: at(decided.ended) }} />}
            </span>
            <span className="lane-how">
              <Mark status={lane.status} /><span>{describe(lane, lanes, zero, now)}</span>
            </span>
            {isOpen(lane) && lane.who !== "Chair" && (
              <button type="button" className="button is-quiet lane-stop" aria-label={`Stop the ${lane.who}`} title={`Stop the ${lane.who}`} onClick={() => onDismiss(lane)}><Square /></button>
            )}
          </li>
        ))}
      </ol>
      <div className="axis" aria-hidden="true">
        <span className="axis-track">{ticksOf(span).map((tick) => <span key={tick} className="tick" style={{ left: `${(100 * tick) / span}%` }}>{tick} s</span>)}</span>
        {decided?.ended && <span className="axis-note">decided after {seconds(decided.ended - zero)}</span>}
      </div>
    </figure>
  );
}

/** A symbol for the status of a run, so that it does not depend on the color. */
const Mark = ({ status }: { status: Lane["status"] }) => (
  <span className="lane-sign" aria-hidden="true">{{ running: "•", completed: "✓", error: "✕", aborted: "■", interrupted: "‖" }[status]}</span>
);

export const isOpen = ({ status }: Lane) => status === "running";

// --8<-- [start:why]
/** How a run ended, as text; for a cancelled run, also why. */
function describe(lane: Lane, lanes: Lane[], zero: number, now: number): string {
  const took = seconds((lane.ended ?? now) - lane.began);
  const since = lane.began - zero >= 0.05 ? `started at ${seconds(lane.began - zero)}, ` : "";
  if (isOpen(lane)) return `${since}running for ${took}`;
  if (lane.status === "completed") return lane.who === "Chair" ? `${since}summed up in ${took}` : `answered after ${took}`;
  if (lane.status === "error") return `failed after ${took}`;
  if (lane.status === "interrupted") return `interrupted after ${took}`;
  return `stopped after ${took}${describeReason(lane.reason, lanes)}`;
}

function describeReason(reason: string | null, lanes: Lane[]): string {
  const [why, run] = (reason ?? "").split(" ");
  const by = lanes.find((lane) => lane.run === run)?.who;
  if (why === "lost-to") return `: the ${by} was first`;
  if (why === "quorum-with") return `: the ${by} was the second to answer`;
  if (why === "no-quorum-after") return `: after the ${by} failed, two answers were no longer possible`;
  return why === "dismissed" || why === "caller-cancelled" ? " by you" : "";
}
// --8<-- [end:why]

/** The run that decided that the others are not needed. */
export const decidingRun = (lanes: Lane[]) => lanes.map(({ reason }) => (reason ?? "").split(" ")[1]).find(Boolean);

const seconds = (time: number) => `${Math.max(0, time).toFixed(1)} s`;

function ticksOf(span: number): number[] {
  const step = [0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800, 7200].find((one) => span / one <= 7) ?? Math.ceil(span / 7);
  return Array.from({ length: Math.floor(span / step) + 1 }, (_, number) => Math.round(10 * number * step) / 10);
}

/** The current time, updated while a run is active. */
function useNow(isLive: boolean): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    if (!isLive) return;
    setNow(Date.now());
    const timer = setInterval(() => setNow(Date.now()), 100);
    return () => clearInterval(timer);
  }, [isLive]);
  return now / 1000;
}

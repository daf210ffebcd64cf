import { type ReactNode } from "react";
import { Gear, Hand, Screen, Turn } from "./icons";
import { Badge } from "./Page";

export type ToolState = "loading" | "streaming" | "waiting-approval" | "approved" | "complete" | "error" | "denied";

const STATES: Record<ToolState, [string, "plain" | "good" | "warn" | "bad"]> = {
  streaming: ["running", "plain"],
  loading: ["running", "plain"],
  "waiting-approval": ["needs your approval", "warn"],
  approved: ["approved", "good"],
  complete: ["done", "good"],
  error: ["failed", "bad"],
  denied: ["denied", "bad"],
};

const STOPPED = "It was stopped."; // the error of a call that was running when its turn was cancelled

/** Return the words and the tone for the state of a call. A call that the user stopped has not failed. */
export const badgeOf = (state: ToolState, error?: string) => (state === "error" && error === STOPPED ? (["stopped", "plain"] as const) : STATES[state]);

type Props = { name: string; where?: string; state: ToolState; input?: unknown; output?: unknown; error?: string; onAnswer?: (approved: boolean) => void };

/** A tool call with its arguments and result, and two buttons if it waits for approval. */
export function ToolCard({ name, where, state, input, output, error, onAnswer }: Props) {
  const [words, tone] = badgeOf(state, error);
  const isBusy = state === "loading" || state === "streaming" || state === "approved";
  const isAsking = state === "waiting-approval" && onAnswer !== undefined;
  const head = (
    <>
      {isAsking ? <Hand /> : where ? <Screen /> : <Gear />}
      <span><span className="name">{name}</span>{where && <span className="where"> {where}</span>}</span>
      <span className="spacer" />
      <Badge tone={tone} dot busy={isBusy}>{words}</Badge>
    </>
  );
  const body = (
    <div className="card-body">
      {(hasEntries(input) || output !== undefined || error) && (
        <dl>
          {rows(input)}
          {output !== undefined && <><dt>result</dt><dd>{format(output)}</dd></>}
          {error && <><dt>error</dt><dd>{error}</dd></>}
        </dl>
      )}
      {isAsking && (
        <div className="card-foot">
          <button type="button" className="button is-main" onClick={() => onAnswer(true)}>Approve<span className="unseen"> {name}</span></button>
          <button type="button" className="button" onClick={() => onAnswer(false)}>Deny<span className="unseen"> {name}</span></button>
        </div>
      )}
    </div>
  );
  if (isAsking) return <section className="card is-asking" aria-label={`${name} needs your approval`}><div className="card-head">{head}</div>{body}</section>;
  return <details className="card"><summary className="card-head">{head}<Turn /></summary>{body}</details>;
}

export const hasEntries = (input: unknown) => typeof input === "object" && input !== null && Object.keys(input).length > 0;

export function rows(input: unknown): ReactNode {
  if (!hasEntries(input)) return null;
  return Object.entries(input as object).map(([key, value]) => [<dt key={`${key}-name`}>{key}</dt>, <dd key={key}>{format(value)}</dd>]);
}

export const format = (value: unknown) => (typeof value === "string" ? value || "“”" : JSON.stringify(value, null, 1));

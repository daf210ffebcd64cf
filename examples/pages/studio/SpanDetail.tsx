// One span: when it was, what is recorded of it, and for a step what the model was sent.

import { type ReactNode, useState } from "react";
import { Drawer } from "../design/Drawer";
import { Cross } from "../design/icons";
import { duration, fullTime } from "./format";
import { useAnswer } from "./hooks";
import { JsonBox } from "./Json";
import { AgentName, CopyButton, ErrorNote, Loading, Nothing, StatusBadge } from "./parts";
import { agentLink } from "./route";
import { childOfRun } from "./children";
import { Scrub } from "./Scrub";
import { useSession } from "./session";
import { kindOf, type SpanRow, titleOf } from "./spans";
import type { Json, ModelRequest } from "./types";

const TEXTS = new Set(["arguments", "request"]);

export function SpanDetail({ row, start, onClose }: { row: SpanRow; start: number; onClose: () => void }) {
  const { span, address } = row;
  const opener = document.activeElement as HTMLElement | null;
  const [back] = useState(opener);
  const took = row.isCut ? "not known: its process ended" : row.end !== null ? duration(row.end - span.began_at) : "unfinished";
  const facts = Object.fromEntries(Object.entries(span.facts).map(([name, value]) => [name, TEXTS.has(name) ? parsed(value) : value]));
  const scrub = scrubOf(row);
  const about: [string, ReactNode][] = [
    ["Agent", <AgentName key="agent" address={address} />],
    ["Began", <>{fullTime(span.began_at)}, {duration(span.began_at - start)} after the start</>],
    ...(span.first_at !== null ? [["First chunk", <>after {duration(span.first_at - span.began_at)}</>] as [string, ReactNode]] : []),
    ["Took", took],
    ["Attempt", String(span.attempt)],
    ["Process", `incarnation ${span.incarnation} of the agent`],
  ];
  return (
    <Drawer label={titleOf(span)} onClose={onClose} returnTo={() => back}>
      <div className="drawer-head">
        <div className="drawer-bar"><span className="drawer-title"><h2>{titleOf(span)}</h2><StatusBadge status={span.status} /><span className="muted">{kindOf(span)} {span.kind === "step" ? span.name : ""}</span></span><span className="spacer" /><button type="button" className="button is-quiet" aria-label="Close" onClick={onClose}><Cross /></button></div>
      </div>
      <div className="drawer-scroll" tabIndex={0} role="group" aria-label="Details">
        <dl className="details">{about.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}</dl>
        {Object.keys(facts).length > 0 && <section aria-labelledby="facts"><h2 id="facts">Recorded</h2><JsonBox label="Facts" value={facts as Json} open={3} /></section>}
        {span.kind === "run" && <p><a href={agentLink(childOfRun(address, span))}>Open the sub-agent</a></p>}
        {scrub && <Scrub {...scrub} />}
        {span.kind === "step" && <Asked address={address} turn={span.work} step={span.step ?? 0} attempt={span.attempt} />}
      </div>
    </Drawer>
  );
}

/** Seconds after its end in which the last chunks of a step are stored. */
const FLUSH = 0.02;

/** Where the chunks of a turn, a step or a run are. */
function scrubOf({ span, address, end }: SpanRow) {
  if (span.kind === "run") return { address: childOfRun(address, span), work: `run ${span.facts.key}`, start: span.began_at };
  if (span.kind === "turn") return { address, work: span.work, start: span.began_at };
  return span.kind === "step" && span.step ? { address, work: span.work, from: span.began_at, to: end === null ? null : end + FLUSH, start: span.began_at } : null;
}

function parsed(value: Json): Json {
  if (typeof value !== "string") return value;
  try {
    return JSON.parse(value);
  } catch {
    return value;
  }
}

function Asked({ address, turn, step, attempt }: { address: string; turn: string; step: number; attempt: number }) {
  const session = useSession();
  const { data, error } = useAnswer<{ requests: ModelRequest[] }>("asked", session.can("content") ? { address, turn, step } : null);
  const [isRaw, setRaw] = useState(false);
  if (!session.can("content")) return <p className="note">What the model was sent is shown with a token that has the scope <code>content</code>.</p>;
  if (error) return <ErrorNote error={error} />;
  if (!data) return <Loading what="Loading what the model was sent" />;
  const request = data.requests.find((one) => one.attempt === attempt) ?? data.requests.at(-1);
  if (!request) return <Nothing title="The request is not recorded">Its process ended before the next commit.</Nothing>;
  const body = parsed(request.body);
  return (
    <section aria-labelledby="asked">
      <div className="row"><h2 id="asked">What the model was sent</h2><span className="spacer" /><label className="check"><input type="checkbox" checked={isRaw} onChange={(event) => setRaw(event.target.checked)} /> As JSON</label><CopyButton text={request.body} /></div>
      {request.url && <p className="muted mono">POST {request.url}</p>}
      {isRaw || typeof body !== "object" || body === null || Array.isArray(body) ? <JsonBox label="Request" value={body} open={2} /> : <Request body={body} />}
    </section>
  );
}

const LISTS = ["messages", "contents", "input"];

/** The request, with its messages one by one. Each provider has names of its own for them. */
function Request({ body }: { body: { [key: string]: Json } }) {
  const list = LISTS.find((name) => Array.isArray(body[name]));
  const rest = Object.entries(body).filter(([name]) => name !== list);
  return (
    <div className="asked">
      {rest.map(([name, value]) => (
        <details key={name}><summary>{name}{Array.isArray(value) ? ` (${value.length})` : typeof value === "object" ? "" : `: ${String(value).slice(0, 80)}`}</summary><JsonBox label={name} value={value} open={2} /></details>
      ))}
      {list && (
        <ol className="asked-messages" aria-label="Messages">
          {(body[list] as Json[]).map((one, at) => <li key={at}><ModelMessage value={one} /></li>)}
        </ol>
      )}
    </div>
  );
}

function ModelMessage({ value }: { value: Json }) {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return <JsonBox label="Message" value={value} />;
  const role = String(value.role ?? value.kind ?? "message");
  const content = value.content ?? value.parts ?? value;
  return (
    <>
      <p className="asked-role">{role}</p>
      {typeof content === "string" ? <p className="asked-text">{content}</p> : Array.isArray(content) ? content.map((part, at) => <ModelPart key={at} part={part} />) : <JsonBox label={role} value={content} open={2} />}
    </>
  );
}

function ModelPart({ part }: { part: Json }) {
  if (typeof part !== "object" || part === null || Array.isArray(part)) return <JsonBox label="Part" value={part} />;
  const text = part.text ?? part.content;
  const kind = String(part.part_kind ?? part.type ?? "");
  if (typeof text === "string" && part.tool_name === undefined) return <p className="asked-text">{kind && kind !== "text" && <span className="muted">{kind}: </span>}{text}</p>;
  const name = String(part.tool_name ?? part.name ?? kind);
  return <div className="asked-part"><span className="muted">{kind} </span><strong className="mono">{name}</strong><JsonBox label={name} value={parsed(part.args ?? part.arguments ?? part.input ?? part.content ?? part)} open={1} /></div>;
}

// The conversation of an agent, as it is stored and as it is streamed, with a box for messages of the operator.

import { type ReactNode, useLayoutEffect, useRef, useState } from "react";
import { Thinking } from "../design/Page";
import { Reasoning } from "../design/RunPanel";
import { Text } from "../design/Text";
import type { ToolState } from "../design/ToolCard";
import { ToolLine } from "../design/ToolLine";
import { ActButton } from "./Act";
import type { TabProps } from "./Agent";
import { Branches, Sibling, useBranches } from "./Branches";
import { Composer } from "./Composer";
import { CopyTest } from "./CopyTest";
import { ForkButton } from "./Fork";
import { duration } from "./format";
import { JsonBox } from "./Json";
import { useLive } from "./live";
import { turnOf, useTranscript } from "./messages";
import { ErrorNote, isHidden, Loading, Nothing, Shown, StatusBadge, Time } from "./parts";
import { link } from "./route";
import { useSession } from "./session";
import { turnId } from "./spans";
import { StreamedPart } from "./StreamedPart";
import type { BranchRow, Json, MessageRow, Span, UIMessage, UIPart } from "./types";

const STATES: Record<string, ToolState> = {
  "input-streaming": "streaming", "input-available": "loading", "approval-requested": "waiting-approval", "approval-responded": "approved",
  "output-available": "complete", "output-error": "error", "output-denied": "denied",
};
const OVER = ["completed", "failed", "cancelled", "interrupted", "skipped"];

export default function Chat({ address, row }: TabProps) {
  const [own, setOwn] = useState<string | null>(null);
  const [switches, setSwitches] = useState(0);
  const { rows, total, error, isLoaded, hasEarlier, earlier, turns } = useTranscript(address, JSON.stringify([row.status, row.calls, row.asks, own, switches]), row.status !== "asleep");
  const branches = useBranches(address, JSON.stringify([rows.length, rows.at(-1)?.position, switches]));
  const session = useSession();
  const canAnswer = session.can("answer");
  const running = turns.find(({ status }) => !OVER.includes(status));
  const streaming = running?.status === "running" && !running.facts.run && session.can("content") ? running.work : null;
  const parts = useLive(address, streaming);
  const live = streaming || rows.at(-1)?.role === "user" ? parts : []; // until the message is there
  const [isLoading, setLoading] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const height = useRef(0);
  const isEarlier = useRef(false);
  useLayoutEffect(() => {
    const list = box.current;
    if (!list) return;
    if (isEarlier.current) list.scrollTop += list.scrollHeight - height.current; // what was read stays where it was
    else if (follows.current) list.scrollTop = list.scrollHeight;
    isEarlier.current = false;
  }, [rows, parts]);
  if (!isLoaded) return error ? <ErrorNote error={error} /> : <Loading what="Loading messages" />;
  const loadEarlier = async () => {
    height.current = box.current!.scrollHeight;
    isEarlier.current = true;
    setLoading(true);
    await earlier();
    setLoading(false);
  };
  const onScroll = () => void (follows.current = box.current!.scrollHeight - box.current!.scrollTop - box.current!.clientHeight < 60);
  return (
    <>
      {error && <ErrorNote error={error} />}
      <Branches address={address} branches={branches} onSwitch={() => setSwitches((one) => one + 1)} />
      {rows.length ? <div className="fills chat" ref={box} role="log" aria-label="Messages" tabIndex={0} onScroll={onScroll}>
        <div className="log-column">
          {hasEarlier && <p className="more"><button type="button" className="button is-small" disabled={isLoading} onClick={loadEarlier}>Earlier messages ({total - rows.length})</button></p>}
          {rows.map((one) => <Said key={one.position} row={one} turn={turnOf(one, turns)} address={address} branches={branches.data?.rows ?? []} />)}
          {live.length > 0 && <article className="message is-assistant"><span className="unseen">assistant, unfinished: </span>{live.map((part, at) => (part.kind === "text" ? <Text key={at} text={part.text} /> : <StreamedPart key={at} part={part} />))}</article>}
          {running && (
            <div className="row">
              {running.status === "waiting" ? <StatusBadge status="waiting">waits for a person</StatusBadge> : <Thinking>Working</Thinking>}
              {running.status === "waiting" && <a className="button is-small" href={link(["inbox"], { at: address })}>{canAnswer ? "Answer" : "See in the inbox"}</a>}
              {turnId(running) !== own && <ActButton label="Cancel turn" title="Cancel the turn?" endpoint="cancel-turn" params={{ address, turn: turnId(running) }} onDone={() => undefined} />}
            </div>
          )}
        </div>
      </div> : <div className="fills"><Nothing title="No messages yet">They appear here as soon as the conversation begins.</Nothing></div>}
      <Composer address={address} running={running} own={own} onSent={(turn) => ((follows.current = true), setOwn(turn))} />
    </>
  );
}

function Said({ row, turn, address, branches }: { row: MessageRow; turn?: Span; address: string; branches: BranchRow[] }) {
  const kind = row.role === "user" ? "is-user" : row.role === "assistant" ? "is-assistant" : "is-given";
  return (
    <article className={`message ${kind}`}>
      <span className="unseen">{row.role}: </span>
      {isHidden(row.message) ? <Shown value={row.message}>{() => null}</Shown> : <Parts message={row.message} isGiven={kind === "is-given"} role={row.role} />}
      <Sibling id={row.id} branches={branches} />
      {turn && (
        <p className="turn-foot">
          <Time at={row.created_at} /> <span>turn {turn.status}{turn.ended_at ? ` in ${duration(turn.ended_at - turn.began_at)}` : ""}</span>
          <a href={link(["t", address, turn.work])}>Timeline</a>
          <ForkButton address={address} turn={turnId(turn)} className="link-button" />
          {OVER.includes(turn.status) && <CopyTest address={address} turn={turn.work} className="link-button" />}
        </p>
      )}
    </article>
  );
}

export function Parts({ message, isGiven, role }: { message: UIMessage; isGiven: boolean; role: string }): ReactNode {
  return (
    <>
      {isGiven && <span className="by">{role}</span>}
      {(message.parts ?? []).map((part, at) => <Part key={at} part={part} role={role} />)}
    </>
  );
}

function Part({ part, role }: { part: UIPart; role: string }): ReactNode {
  if (part.type === "step-start") return null;
  if (part.type === "text") return role === "user" ? <span>{part.text}</span> : <Text text={part.text ?? ""} />;
  if (part.type === "reasoning") return <Reasoning text={part.text ?? ""} isGrowing={false} />;
  if (part.type === "file") return <p className="muted">File {part.filename ?? ""} {part.mediaType}</p>;
  const tool = part.type.startsWith("tool-") ? part.type.slice(5) : part.type === "dynamic-tool" ? part.toolName : null;
  if (tool) return <ToolLine name={tool} state={STATES[part.state ?? ""] ?? "complete"} input={part.input} output={part.output} error={part.errorText} />;
  return <JsonBox label={part.type} value={part as unknown as Json} open={0} />;
}

// What differs between two agents and those below them: their conversations side by side, and what else differs as tables.

import { type FormEvent, type ReactNode, useId, useState } from "react";
import { Parts } from "./Chat";
import { plural, segments } from "./format";
import { useAnswer } from "./hooks";
import { Brief } from "./Json";
import { AgentName, type Column, ErrorNote, isHidden, Loading, Nothing, Shown, Table, Title } from "./parts";
import { go, link } from "./route";
import type { AgentDiff, AgentRow, DiffChange, DiffPlace, Json, MessageRow, Page, PartDiff, Schema, TreeDiff, UIMessage } from "./types";

const LIMIT = 100;
const PLACES: Record<DiffPlace, string> = { only_a: "only in the first", only_b: "only in the second", changed: "different" };
const KINDS: Record<string, string> = { state: "State", messages: "Messages", files: "Files", spending: "Spending", schema: "Tables and indexes" };
/** What a change is called by, in each part. */
const KEYS: Record<string, string> = { state: "Field", messages: "Message", files: "SHA-256", spending: "Model", schema: "Name", table: "Key" };

export function CompareAgents({ a, b }: { a: string; b: string }) {
  const { data, error, reload } = useAnswer<TreeDiff>("diff", b ? { address: a, other: b, limit: LIMIT } : null);
  if (!b) return <><Title title="Compare" /><Choose a={a} /></>;
  const own = data?.agents_changed.find(({ path }) => !path);
  const below = data?.agents_changed.filter(({ path }) => path) ?? [];
  return (
    <>
      <Title title="Compare" actions={<a className="button is-small" href={link(["compare"], { a })}>With another agent</a>} />
      <div className="versus-heads">{[["First", a] as const, ["Second", b] as const].map(([name, address]) => <p key={name} className="versus-head"><span className="muted">{name}: </span><AgentName address={address} /></p>)}</div>
      {error && <><ErrorNote error={error} onRetry={reload} /><Choose a={a} chosen={b} /></>}
      {!data && !error && <Loading what="Comparing" />}
      {data && <Summary diff={data} />}
      {data && <Conversations a={a} b={b} changed={own?.parts.find(({ kind }) => kind === "messages")} />}
      {own?.parts.filter(({ kind }) => kind !== "messages").map((part) => <Part key={`${part.kind} ${part.name}`} part={part} />)}
      {below.map((agent) => <Below key={agent.path} agent={agent} a={a} b={b} />)}
      {data && data.agents_changed.length < data.changed && <p className="note">The first {data.agents_changed.length} of {data.changed} agents that differ are shown.</p>}
    </>
  );
}

/** The choice of another agent: those of the same class beside the first are suggested, and any address may be typed. */
function Choose({ a, chosen = "" }: { a: string; chosen?: string }) {
  const [b, setB] = useState(chosen);
  const above = segments(a);
  const { type } = above.at(-1)!;
  const parent = above.length > 1 ? above.at(-2)!.address : null;
  const { data, error } = useAnswer<Page<AgentRow>>("agents", { address: parent, type, limit: 100 });
  const id = useId();
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (b.trim()) go(link(["compare"], { a, b: b.trim() }));
  };
  return (
    <form className="choose" onSubmit={submit}>
      <p>Compare <AgentName address={a} /> and all agents below it with another agent. Both are copied as they are now, and keep running.</p>
      {error && <ErrorNote error={error} />}
      <div className="row">
        <div className="field"><label htmlFor={id}>Other agent</label><input id={id} type="text" list={`${id}-list`} autoComplete="off" autoFocus placeholder={`${type}:name`} value={b} onChange={(event) => setB(event.target.value)} /></div>
        <button type="submit" className="button is-main" disabled={!b.trim()}>Compare</button>
      </div>
      <datalist id={`${id}-list`}>{data?.rows.filter(({ address }) => address !== a).map(({ address }) => <option key={address} value={address} />)}</datalist>
    </form>
  );
}

function Summary({ diff }: { diff: TreeDiff }) {
  if (!diff.changed && !diff.only_a && !diff.only_b) return <Nothing title="They do not differ">{plural(diff.both, "agent")} on each side {diff.both === 1 ? "has" : "have"} the same conversation, state, tables, files and spending.</Nothing>;
  const sides: [string, string[], number][] = [["the first", diff.agents_only_a, diff.only_a], ["the second", diff.agents_only_b, diff.only_b]];
  return (
    <div role="status">
      <p>{diff.changed ? <><strong>{diff.changed}</strong> of {plural(diff.both, "agent")} {diff.changed === 1 ? "differs" : "differ"}.</> : `No agent that both have differs (${diff.both}).`}</p>
      {sides.map(([name, paths, all]) => all > 0 && <p key={name}>{plural(all, "agent")} only in {name}: {paths.slice(0, 10).join(", ")}{all > 10 && " …"}</p>)}
    </div>
  );
}

function Below({ agent, a, b }: { agent: AgentDiff; a: string; b: string }) {
  return (
    <section className="below" aria-label={agent.path}>
      <h2><a href={link(["compare"], { a: `${a}/${agent.path}`, b: `${b}/${agent.path}` })}>{segments(agent.path).map(({ type, name }) => `${type} ${name}`).join(" / ")}</a></h2>
      {agent.parts.map((part) => <Part key={`${part.kind} ${part.name}`} part={part} />)}
    </section>
  );
}

function Part({ part }: { part: PartDiff }) {
  const title = part.kind === "table" ? `Table ${part.name}` : KINDS[part.kind] ?? part.kind;
  const counts = (Object.keys(PLACES) as DiffPlace[]).filter((place) => part[place]).map((place) => `${part[place]} ${PLACES[place]}`);
  const columns: Column<DiffChange>[] = [
    { key: "key", label: KEYS[part.kind] ?? "Key", cell: ({ key }) => <Shown value={key}>{(text) => <span className="mono">{text}</span>}</Shown> },
    { key: "a", label: "First", cell: (change) => <Side part={part} change={change} side="a" /> },
    { key: "b", label: "Second", cell: (change) => <Side part={part} change={change} side="b" /> },
  ];
  const all = part.only_a + part.only_b + part.changed;
  return (
    <div className="part">
      <h3>{title} <span className="muted">{counts.join(", ")}</span></h3>
      {part.problem !== null && <p className="note is-warn"><Shown value={part.problem}>{(text) => text}</Shown></p>}
      {part.changes.length > 0 && <Table label={title} columns={columns} rows={part.changes} id={(change) => String(part.changes.indexOf(change))} />}
      {part.changes.length < all && <p className="muted">The first {part.changes.length} of {all} are shown.</p>}
    </div>
  );
}

function Side({ part, change, side }: { part: PartDiff; change: DiffChange; side: "a" | "b" }): ReactNode {
  if (change.kind === (side === "a" ? "only_b" : "only_a")) return <span className="muted">–</span>;
  const value = change[side];
  const text = part.kind === "messages" && !isHidden(value) ? saidIn(value) : value;
  return <span className={change.kind === "changed" ? "" : "only"}><Shown value={text}>{(one) => (typeof one === "string" && part.kind !== "state" ? <span className="said">{one}</span> : <Brief label={side === "a" ? "First" : "Second"} value={one} />)}</Shown></span>;
}

/** The text of a message, for a table. */
function saidIn(value: Json): string {
  const parts = (value as unknown as UIMessage).parts ?? [];
  return parts.map(({ type, text }) => (type === "text" ? text : type === "step-start" ? "" : `[${type}]`)).filter(Boolean).join(" ");
}

type Line = { id: string; a: MessageRow | null; b: MessageRow | null };

/** The newest messages of both, aligned by their ids. A message that both have stands once. */
function Conversations({ a, b, changed }: { a: string; b: string; changed?: PartDiff }) {
  const isChat = useAnswer<Schema>("schema", { address: a }).data?.is_chat ?? false;
  const first = useAnswer<Page<MessageRow>>("transcript", isChat ? { address: a, limit: LIMIT } : null);
  const second = useAnswer<Page<MessageRow>>("transcript", isChat ? { address: b, limit: LIMIT } : null);
  const error = first.error ?? second.error;
  if (!isChat) return null;
  if (!first.data || !second.data) return error ? <ErrorNote error={error} /> : <Loading what="Loading messages" />;
  const lines = aligned([...first.data.rows].reverse(), [...second.data.rows].reverse());
  const differing = new Set(changed?.changes.filter(({ kind }) => kind === "changed").map(({ key }) => key));
  const hidden = Math.max(first.data.total! - first.data.rows.length, second.data.total! - second.data.rows.length);
  if (!lines.length) return null;
  return (
    <section aria-label="Conversations">
      <h2>Conversations</h2>
      {hidden > 0 && <p className="muted">The newest {LIMIT} messages of each are shown.</p>}
      <div className="versus" role="group" tabIndex={0} aria-label="Messages of both">
        {lines.map((line) => {
          const isSame = line.a?.id === line.b?.id;
          if (isSame && !differing.has(line.id)) return <div key={line.id} className="versus-both"><Message row={line.a!} where="in both" /></div>;
          return (
            <div key={line.id} className="versus-row">
              <div>{line.a && <Message row={line.a} where={isSame ? "first" : "only in the first"} />}</div>
              <div>{line.b && <Message row={line.b} where={isSame ? "second" : "only in the second"} />}</div>
            </div>
          );
        })}
      </div>
    </section>
  );
}

function Message({ row, where }: { row: MessageRow; where: string }) {
  const kind = row.role === "user" ? "is-user" : row.role === "assistant" ? "is-assistant" : "is-given";
  return (
    <article className={`message ${kind}`}>
      <span className="unseen">{row.role}, {where}: </span>
      {isHidden(row.message) ? <Shown value={row.message}>{() => null}</Shown> : <Parts message={row.message} isGiven={kind === "is-given"} role={row.role} />}
    </article>
  );
}

/** Messages that both have, and those that only one has, in the order of both. After them, one of each stand beside each other. */
function aligned(first: MessageRow[], second: MessageRow[]): Line[] {
  const inFirst = new Map(first.map((row, at) => [row.id, at]));
  const inSecond = new Map(second.map((row, at) => [row.id, at]));
  const lines: Line[] = [];
  let [at, other] = [0, 0];
  while (at < first.length || other < second.length) {
    const [a, b] = [first[at], second[other]];
    const isOwn = a && !inSecond.has(a.id);
    const isOther = b && !inFirst.has(b.id);
    if (a && b && a.id === b.id) lines.push({ id: a.id, a: first[at++], b: second[other++] });
    else if (isOwn && isOther) lines.push({ id: `${a.id} ${b.id}`, a: first[at++], b: second[other++] });
    else if (a && (isOwn || !isOther)) lines.push({ id: `${a.id} first`, a: first[at++], b: null });
    else lines.push({ id: `${b!.id} second`, a: null, b: second[other++] });
  }
  return lines;
}

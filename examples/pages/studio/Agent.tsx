// One agent: what it is, did and will do.

import { lazy, type ReactNode, useState } from "react";
import { ActButton, CreateButton } from "./Act";
import { ForkButton } from "./Fork";
import { plural, segments } from "./format";
import { useAnswer, useStream } from "./hooks";
import { AgentPath, ErrorNote, Loading, Nothing, Shown, StatusBadge, Tabs, Title } from "./parts";
import { agentLink, go, link, useRoute } from "./route";
import { useSession } from "./session";
import type { Schema, WatchRow } from "./types";

export type TabProps = { address: string; row: WatchRow; schema: Schema | null; number?: number };
type Tab = { name: string; label: string; view: React.ComponentType<TabProps>; number?: number };

const TABS: Tab[] = [
  { name: "chat", label: "Chat", view: lazy(() => import("./Chat")) },
  { name: "timeline", label: "Timeline", view: lazy(() => import("./Works")) },
  { name: "state", label: "State", view: lazy(() => import("./State")) },
  { name: "tables", label: "Tables", view: lazy(() => import("./Tables")) },
  { name: "schedules", label: "Schedules", view: lazy(() => import("./AgentAgenda")) },
  { name: "runs", label: "Runs", view: lazy(() => import("./Runs")) },
  { name: "files", label: "Files", view: lazy(() => import("./Files")) },
  { name: "spending", label: "Spending", view: lazy(() => import("./AgentSpending")) },
  { name: "connections", label: "Connections", view: lazy(() => import("./Connections")) },
  { name: "log", label: "Log", view: lazy(() => import("./AgentLog")) },
];
const AuthorTab = lazy(() => import("./AuthorTab"));

export default function Agent() {
  const { path } = useRoute();
  const address = path[1] ?? "";
  return <Shell key={address} address={address} tab={path[2]} />;
}

function Shell({ address, tab }: { address: string; tab?: string }) {
  const [row, setRow] = useState<WatchRow | null>(null);
  const lost = useStream("watch", { addresses: [address] }, ({ data }) => setRow(data.rows[0]));
  const schema = useAnswer<Schema>("schema", row && row.status !== "gone" ? { address } : null);
  const session = useSession();
  const above = segments(address);
  const name = above.pop()!;
  const title = <><span className="type">{name.type}</span> {name.name}</>;
  if (!row) return <><AgentPath above={above} /><Title title={title} />{lost ? <ErrorNote error={lost} /> : <Loading />}</>;
  if (row.status === "gone") return <><AgentPath above={above} /><Title title={title} /><Nothing title="There is no such agent">It was deleted, or it was never created. <a href={link(["agents"], { q: name.name })}>Find agents with this name</a><Create address={address} /></Nothing></>;
  const hasChat = Boolean(schema.data?.is_chat || schema.data?.tables.some((one) => one.name === "sapwood_messages"));
  const added = (session.tabs[name.type] ?? []).map((one, number): Tab => ({ name: `tab-${number}`, label: one.title, view: AuthorTab, number }));
  const tabs = [...TABS.filter((one) => one.name !== "chat" || hasChat), ...added];
  const shown = tabs.find((one) => one.name === tab) ?? tabs[0];
  const View = shown.view;
  const isWaiting = !tab && !schema.data && !schema.error;
  return (
    <>
      <div className="agent-head">
        <AgentPath above={above} />
        <Title title={title} actions={<Actions row={row} name={name.name} />}><About row={row} /></Title>
      </div>
      {lost && <ErrorNote error={lost} />}
      <Tabs label={`${name.type} ${name.name}`} current={isWaiting ? "" : shown.name} tabs={tabs.map((one) => ({ name: one.name, label: one.label, href: agentLink(address, one.name) }))} />
      {isWaiting ? <Loading /> : <View key={shown.name} address={address} row={row} schema={schema.data} number={shown.number} />}
    </>
  );
}

/** A button for a root that does not exist. Sub-agents are created by their parents. */
function Create({ address }: { address: string }) {
  const { roots } = useSession();
  if (address.includes("/") || !roots.includes(segments(address)[0].type)) return null;
  return <span className="nothing-act"><CreateButton address={address} /></span>;
}

function About({ row }: { row: WatchRow }) {
  const facts: ReactNode[] = [];
  if (row.calls) facts.push(plural(row.calls, "call"));
  if (row.sockets) facts.push(plural(row.sockets, "client"));
  if (row.children) facts.push(<a href={link(["agents"], { q: `${row.address}/` })}>{plural(row.children, "child", "children")}</a>);
  return (
    <p className="about">
      <StatusBadge status={row.status} />
      {Boolean(row.asks) && <a className="badge-link" href={link(["inbox"], { at: row.address })}><StatusBadge status="asks">{plural(row.asks!, "agent waits", "agents wait")} for a person</StatusBadge></a>}
      {row.dead > 0 && <a className="badge-link" href={link(["schedules"], { show: "dead", at: row.address })}><StatusBadge status="dead">{plural(row.dead, "agent has", "agents have")} dead letters</StatusBadge></a>}
      {facts.map((one, at) => <span key={at} className="muted">{one}</span>)}
      {row.last_error && <span className="agent-error"><Shown value={row.last_error}>{(text) => <>{text}</>}</Shown></span>}
    </p>
  );
}

function Actions({ row, name }: { row: WatchRow; name: string }) {
  const { address } = row;
  const isRoot = !address.includes("/");
  const [type] = segments(address).slice(-1);
  return (
    <>
      <a className="button is-small" href={link(["compare"], { a: address })}>Compare</a>
      <ForkButton address={address} />
      {row.status === "quarantined" && isRoot && <ActButton label="Release" title={`Release ${type.type} ${name} from quarantine?`} endpoint="release" params={{ address }} effect="It is started again with the next call." onDone={() => undefined} />}
      {row.status !== "asleep" && <ActButton label="Restart" title={`Restart ${type.type} ${name}?`} endpoint="restart" params={{ address }} onDone={() => undefined} />}
      <ActButton label="Delete" title={`Delete ${type.type} ${name}?`} endpoint="destroy" params={{ address }} confirmName={name} isDanger onDone={() => go("#/agents")} />
    </>
  );
}

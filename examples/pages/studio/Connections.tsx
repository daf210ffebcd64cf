// The clients that are connected to an agent.

import type { TabProps } from "./Agent";
import { bytes, count, plural } from "./format";
import { usePages, useRefresh } from "./hooks";
import { PagedTable } from "./PagedTable";
import { type Column, Nothing, Shown, Time } from "./parts";
import type { ConnectionRow, Content } from "./types";

const LIMIT = 100;
const EVERY = 3000;
const PROTOCOLS = { websocket: "WebSocket", events: "event stream" };

const text = (value: Content<string> | null, absent: string) => (value === null ? <span className="muted">{absent}</span> : <Shown value={value}>{(one) => <>{one}</>}</Shown>);

function rights(row: ConnectionRow): string {
  if (row.protocol === "events" || row.watch_only) return "may watch";
  return row.readonly ? "may not set the state" : "";
}

const COLUMNS: Column<ConnectionRow>[] = [
  { key: "user", label: "User", grow: true, cell: (row) => (
    <>
      <strong>{text(row.user, "no user")}</strong> <span className="muted">{rights(row)}</span>
      {row.client !== null && <p className="muted">{text(row.client, "")}</p>}
    </>
  ) },
  { key: "protocol", label: "Protocol", cell: (row) => <>{PROTOCOLS[row.protocol]}{row.path !== null && row.path !== "/" && <span className="muted"> {text(row.path, "")}</span>}</> },
  { key: "id", label: "Connection", cell: (row) => <>{text(row.id, "–")}{row.tags.map((tag, at) => <span key={at} className="muted"> {text(tag, "")}</span>)}</> },
  { key: "since", label: "Since", cell: (row) => <Time at={row.since} /> },
  { key: "sent", label: "Sent", align: "end", cell: (row) => (row.sent === null ? "–" : <>{count(row.sent)}{Boolean(row.unread_bytes) && <span className="row-error"> {bytes(row.unread_bytes!)} unread</span>}</>) },
];

export default function Connections({ address }: TabProps) {
  const pages = usePages<ConnectionRow>("connections", { address }, LIMIT);
  useRefresh(pages, LIMIT, EVERY);
  const about = <p className="muted" role="status">{plural(pages.total ?? 0, "connection")}</p>;
  return (
    <PagedTable label="Connections" pages={pages} columns={COLUMNS} id={(row) => `${row.protocol} ${row.number}`} loading="Loading the connections" about={about}>
      <Nothing title="No client is connected">WebSockets and event streams that clients hold open appear here. Clients of a sub-agent are shown with the sub-agent.</Nothing>
    </PagedTable>
  );
}

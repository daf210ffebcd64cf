// The processes of a server, or the nodes of a cluster, with what they use.

import { useEffect, useRef, useState } from "react";
import { bytes, count, duration, plural } from "./format";
import { type Column, StatusBadge, Table } from "./parts";
import type { Top, Worker } from "./types";

type Rates = Record<string, { cpu: number; calls: number }>;
type Row = Worker & { rate?: { cpu: number; calls: number } };

/** CPU and calls per second, between two answers. */
function useRates(workers: Worker[]): Rates {
  const last = useRef<{ at: number; workers: Worker[] } | null>(null);
  const [rates, setRates] = useState<Rates>({});
  useEffect(() => {
    const now = performance.now() / 1000;
    const before = last.current;
    last.current = { at: now, workers };
    if (!before || now - before.at < 0.5) return;
    const found: Rates = {};
    for (const one of workers) {
      const old = before.workers.find(({ worker, process }) => worker === one.worker && process === one.process);
      if (old) found[one.worker] = { cpu: (one.cpu_seconds - old.cpu_seconds) / (now - before.at), calls: (one.calls_done - old.calls_done) / (now - before.at) };
    }
    setRates(found);
  }, [workers]);
  return rates;
}

const BACKLOG: [keyof Worker["waiting"], (number: number) => string][] = [
  ["due", (number) => `${plural(number, "tree")} with due work`],
  ["waking", (number) => `${plural(number, "agent")} waking`],
  ["disk", (number) => `${plural(number, "reply", "replies")} until stored`],
  ["threads", (number) => `${plural(number, "call")} for a thread`],
  ["clients", (number) => `${bytes(number)} unread by clients`],
  ["workers", (number) => `${plural(number, "exchange")} with other processes`],
];

function backlog(row: Worker): string {
  const found = BACKLOG.filter(([key]) => row.waiting[key]).map(([key, text]) => text(row.waiting[key]));
  return found.join(", ") || "–";
}

const COLUMNS: Column<Row>[] = [
  { key: "worker", label: "Process", grow: true, cell: (row) => <><strong>{row.worker || `Process ${row.process}`}</strong>{row.pool && <span className="muted"> {row.pool}</span>} <StatusBadge status={row.ready ? "ready" : "failed"}>{row.ready ? "ready" : "not ready"}</StatusBadge></> },
  { key: "cpu", label: "CPU", align: "end", cell: (row) => (row.rate ? `${Math.max(0, Math.round(row.rate.cpu * 100))} %` : "…") },
  { key: "memory", label: "Memory", align: "end", cell: (row) => bytes(row.memory) },
  { key: "agents", label: "Agents in memory", align: "end", cell: (row) => count(row.agents) },
  { key: "calls", label: "Calls", align: "end", cell: (row) => count(row.calls) },
  { key: "rate", label: "Calls per second", align: "end", cell: (row) => (row.rate ? Math.max(0, row.rate.calls).toFixed(1) : "…") },
  { key: "sockets", label: "Clients", align: "end", cell: (row) => count(row.sockets) },
  { key: "waiting", label: "Backlog", cell: backlog },
  { key: "uptime", label: "Up for", align: "end", cell: (row) => <>{duration(Math.round(row.uptime))}{row.restarts > 0 && <span className="muted">, {row.restarts} restarts</span>}</> },
];

export function Workers({ top }: { top: Top }) {
  const rates = useRates(top.workers);
  return <Table label="Processes" columns={COLUMNS} rows={top.workers.map((one) => ({ ...one, rate: rates[one.worker] }))} id={(row) => `${row.worker} ${row.process}`} />;
}

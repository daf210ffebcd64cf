// Is anything wrong? What waits for a person, what failed, and what the processes do.

import type { ReactNode } from "react";
import { count, duration, plural } from "./format";
import { type Loaded, useAnswer } from "./hooks";
import { Good, Warning } from "./icons";
import { AgentName, type Column, ErrorNote, Gaps, Loading, Nothing, Table, Title } from "./parts";
import { agentLink, link } from "./route";
import { useSession } from "./session";
import type { Busy, Letter, Page, QuestionRow, Top, Unread } from "./types";
import { Workers } from "./Workers";

type Concern = { key: string; tone: "warn" | "bad"; text: ReactNode; href: string };
type Letters = { letters: Letter[]; more: boolean; unread: Unread[]; unanswered?: string[] };

export function Now() {
  const session = useSession();
  const top = useAnswer<Top>("top", { trees: 10 }, 2000);
  const questions = useAnswer<Page<QuestionRow>>("questions", { limit: 100 }, 5000);
  const letters = useAnswer<Letters>("dead-letters", session.can("content") ? { below: true } : null, 10_000);
  const error = top.error ?? [questions, letters].map((one: Loaded<unknown>) => one.error).find((one) => one && one.code !== "refused");
  if (!top.data) return error ? <ErrorNote error={error} onRetry={top.reload} /> : <Loading />;
  return (
    <>
      <Title title="Now" />
      {error && <ErrorNote error={error} />}
      <Verdict concerns={concerns(top.data, questions.data, letters.data)} />
      <section aria-labelledby="processes">
        <h2 id="processes">{plural(top.data.workers.length, "process", "processes")}</h2>
        <Workers top={top.data} />
      </section>
      <section aria-labelledby="busiest">
        <h2 id="busiest">Busiest agents</h2>
        {top.data.busiest.length ? <Busiest rows={top.data.busiest} /> : <Nothing title="No agent is in memory">Agents wake when a client connects, a call arrives or a schedule is due.</Nothing>}
      </section>
      <Gaps unanswered={top.data.unanswered} unread={letters.data?.unread} />
    </>
  );
}

function concerns(top: Top, questions: Page<QuestionRow> | null, letters: Letters | null): Concern[] {
  const found: Concern[] = [];
  const machines = link(["machines"]);
  for (const one of top.workers.filter(({ ready }) => !ready))
    found.push({ key: `unready ${one.worker}`, tone: "bad", text: <>{one.worker} is not ready: {one.unready}</>, href: machines });
  for (const one of top.silent ?? []) found.push({ key: `silent ${one.worker}`, tone: "bad", text: <>{one.worker} does not answer</>, href: machines });
  if (questions?.rows.length) {
    const number = `${count(questions.rows.length)}${questions.next ? "+" : ""}`;
    found.push({ key: "asks", tone: "warn", text: <>{number} {questions.rows.length === 1 ? "question waits" : "questions wait"} for a person</>, href: link(["inbox"]) });
  }
  if (letters?.letters.length) {
    const number = `${count(letters.letters.length)}${letters.more ? "+" : ""}`;
    found.push({ key: "dead", tone: "bad", text: <>{number} dead {letters.letters.length === 1 ? "letter" : "letters"}: calls whose retries failed</>, href: link(["schedules"], { show: "dead" }) });
  }
  for (const one of top.failing.slice(0, 5))
    found.push({ key: `failing ${one.address} ${one.method}`, tone: "warn", text: <><code>{one.method}</code> of {one.address} failed {plural(one.failures, "time")} in a row, and is retried</>, href: agentLink(one.address, "schedules") });
  for (const one of top.slow.slice(0, 5))
    found.push({ key: `slow ${one.worker} ${one.method}`, tone: "warn", text: <><code>{one.method}</code> kept {one.worker || "its process"} from all other work for up to {duration(one.seconds)}, {plural(one.times, "time")}</>, href: link(["machines"], { show: "slow" }) });
  return found;
}

function Verdict({ concerns }: { concerns: Concern[] }) {
  if (!concerns.length) return <p className="verdict is-good"><Good /> Nothing needs attention</p>;
  return (
    <ul className="concerns" aria-label="Needs attention">
      {concerns.map(({ key, tone, text, href }) => <li key={key}><a className={`verdict is-${tone}`} href={href}><Warning /><span>{text}</span></a></li>)}
    </ul>
  );
}

const COLUMNS: Column<Busy>[] = [
  { key: "agent", label: "Agent", grow: true, cell: (row) => <AgentName address={row.address} /> },
  { key: "agents", label: "Agents in memory", align: "end", cell: (row) => count(row.agents) },
  { key: "calls", label: "Calls", align: "end", cell: (row) => count(row.calls) },
  { key: "rate", label: "Calls per second", align: "end", cell: (row) => (row.per_second === null ? "–" : row.per_second.toFixed(1)) },
  { key: "queued", label: "Queued", align: "end", cell: (row) => `${count(row.queued)}${row.more ? "+" : ""}` },
  { key: "sockets", label: "Clients", align: "end", cell: (row) => count(row.sockets) },
];

const Busiest = ({ rows }: { rows: Busy[] }) => <Table label="Busiest agents" columns={COLUMNS} rows={rows} id={(row) => row.address} />;

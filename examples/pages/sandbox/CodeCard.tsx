import { type ReactNode } from "react";
import { Badge, Gear } from "../design";
import type { CodeRun } from "./lab";

const KINDS: Record<string, string> = {
  syntax: "This Python cannot run here",
  unknown: "Unknown name or module",
  forbidden: "Not allowed here",
  limit: "A limit was reached",
  binding: "A function that the code called failed",
  raised: "The code raised",
  crashed: "The sandbox crashed",
};
const TONES = { running: "plain", paused: "warn", done: "good", refused: "bad", stopped: "plain" } as const;

type Props = { title: string; code: string; run?: CodeRun; action?: ReactNode };

/** Code with its status, its calls and its result. */
export function CodeCard({ title, code, run, action }: Props) {
  const status = run?.status;
  return (
    <article className="card code" aria-label={title}>
      <div className="card-head">
        <Gear /><h3 className="name">{title}</h3><span className="spacer" />
        {status && <Badge tone={TONES[status]} dot busy={status === "running" || status === "paused"}>{status}</Badge>}
        {action}
      </div>
      <div className="card-body">
        <Lines code={code} run={run} />
        {run && run.calls.length > 0 && <Calls run={run} />}
        {run && run.starts > 1 && <p className="went-on">The server was killed {times(run.starts - 1)} during this run. The code resumed from its snapshot.</p>}
        {run && <Outcome run={run} />}
      </div>
    </article>
  );
}

const times = (number: number) => (number === 1 ? "once" : `${number} times`);

function Lines({ code, run }: { code: string; run?: CodeRun }) {
  const where = run?.status === "paused" ? "waiting here" : "ended here";
  return (
    <pre className="lines" tabIndex={0} aria-label="Code"><code>
      {code.split("\n").map((line, number) => (
        <span key={number} className={run?.line === number + 1 ? `line is-${run.status}` : "line"}>
          {line || " "}{run?.line === number + 1 && <span className="unseen"> ({where})</span>}{"\n"}
        </span>
      ))}
    </code></pre>
  );
}

function Calls({ run }: { run: CodeRun }) {
  return (
    <ol className="calls" aria-label="Calls">
      {run.calls.map(({ city, answer, attempts }, number) => (
        <li key={number}>
          <code>customers({JSON.stringify(city)})</code>
          <span className={answer === null ? "answer is-waiting" : "answer"}>{answer ?? "paused: waiting for the database"}{attempts > 1 && `, ${attempts} attempts`}</span>
        </li>
      ))}
    </ol>
  );
}

function Outcome({ run }: { run: CodeRun }) {
  const { printed, value, kind, message, line } = run;
  const long = printed.length > 300 ? `${printed.slice(0, 300)}…` : printed;
  return (
    <div className="outcome" role="status">
      {long && <pre tabIndex={0} aria-label="Printed">{long.trimEnd()}</pre>}
      {run.status === "done" && <p><span className="unseen">Result: </span><code>=&gt; {value ?? "nothing"}</code></p>}
      {kind && <p className="refusal"><Badge tone="bad">{kind}</Badge> {KINDS[kind]}{line !== null && ` (line ${line})`}: <code>{message}</code></p>}
    </div>
  );
}

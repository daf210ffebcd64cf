import { type FormEvent, useRef, useState } from "react";
import { Back, Badge, Hand, Page, Thinking } from "../design";
import { CodeCard } from "./CodeCard";
import { type CodeRun, otherPage, useLab } from "./lab";
import { Side } from "./Side";

/** Ten escape attempts that run for real, and a box for the user's own code. */
export function Escapes({ name }: { name: string }) {
  const { agent, state, isConnected } = useLab(name);
  const [problem, setProblem] = useState("");
  const connection = useRef(agent);
  connection.current = agent;
  const attempt = async (escape: string, code: string) => {
    setProblem("");
    const id = `${escape}-${crypto.getRandomValues(new Uint32Array(1))[0]}`;
    for (;;) {
      // Retry a call that was in progress when the connection broke: the id makes it idempotent.
      const error = await connection.current.call("attempt", [id, code]).then(() => "", ({ message }: Error) => message);
      if (error !== "Connection closed") return setProblem(error);
    }
  };
  const latest = (escape: string) => state?.runs.filter(({ id }) => id.startsWith(`${escape}-`)).at(-1);
  const tried = state?.escapes.map(({ id }) => latest(id)) ?? [];
  return (
    <Page
      title="Ten ways out"
      head={
        <>
          <Badge tone={isConnected ? "good" : "warn"} dot busy={!isConnected}><span className="unseen-narrow">{isConnected ? "connected" : "connecting"}</span></Badge>
          <span className="spacer" />
          <a className="button is-quiet" href={otherPage()}><Back /><span className="unseen-narrow">Conversation</span></a>
        </>
      }
      side={{ title: "The sandbox", icon: <Hand />, count: state?.runs.length ?? 0, children: <Side state={state} /> }}
    >
      <div className="escapes">
        <div className="escapes-head">
          <p className="note" role="status">{summary(tried)}</p>
          <button type="button" className="button is-main" disabled={!state} onClick={() => state?.escapes.forEach(({ id, code }) => void attempt(id, code))}>Try all ten</button>
        </div>
        {problem && <div className="alert" role="alert"><p>{problem}</p></div>}
        {!state && <Thinking>Connecting</Thinking>}
        {state?.escapes.map(({ id, title, code }) => (
          <CodeCard key={id} title={title} code={code} run={latest(id)} action={<button type="button" className="button" aria-label={`Try: ${title}`} disabled={isActive(latest(id))} onClick={() => void attempt(id, code)}>Try</button>} />
        ))}
        {state && <Own run={latest("own")} onRun={(code) => void attempt("own", code)} />}
      </div>
    </Page>
  );
}

const isActive = (run?: CodeRun) => run?.status === "running" || run?.status === "paused";

function summary(tried: (CodeRun | undefined)[]): string {
  const refused = tried.filter((run) => run?.status === "refused").length;
  if (tried.some(isActive)) return `${refused} of 10 refused, others are running.`;
  const out = tried.filter((run) => run?.status === "done").length;
  if (out) return `${out} completed without a refusal.`;
  return refused ? `${refused} of 10 tried and refused.` : "Nothing tried yet. Each attempt runs for real, in the sandbox on the server.";
}

function Own({ run, onRun }: { run?: CodeRun; onRun: (code: string) => void }) {
  const [code, setCode] = useState("");
  const submit = (event: FormEvent) => {
    event.preventDefault();
    onRun(code);
  };
  return (
    <section aria-labelledby="own-title">
      <h2 id="own-title">Your own</h2>
      <form className="own" onSubmit={submit}>
        <label htmlFor="own">Python that tries to escape, or calls <code>customers("Rome")</code></label>
        <textarea id="own" rows={4} value={code} spellCheck={false} autoCapitalize="off" onChange={(event) => setCode(event.target.value)} />
        <button type="submit" className="button" disabled={!code.trim() || isActive(run)}>Run</button>
      </form>
      {run && <CodeCard title="Your own" code={run.code} run={run} />}
    </section>
  );
}

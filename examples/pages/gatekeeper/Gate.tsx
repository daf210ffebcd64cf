import { useEffect, useRef } from "react";
import { Badge, Thinking } from "../design";
import type { Customer, Decision, Gate, State, Values } from "./gate";
import { Proposal } from "./Proposal";

const VERDICTS = { approved: "good", edited: "warn", rejected: "bad" } as const;

/** The proposals that wait for a decision, sorted by agent. */
export function Queue({ name, gate }: { name: string; gate: Gate }) {
  const { waiting, sent, problem } = gate;
  const box = useRef<HTMLDivElement>(null);
  const decided = useRef<string | null>(null);
  const seals = waiting?.map(({ seal }) => seal).join() ?? "";
  useEffect(() => {
    // The focused proposal is gone, or its decision was rejected: focus the next one, unless the user has moved the focus.
    if (decided.current === null || (!problem && seals.split(",").includes(decided.current))) return;
    const active = document.activeElement;
    if (!box.current?.contains(active) && active !== document.body) decided.current = null;
    if (active !== document.body) return;
    (box.current?.querySelector<HTMLElement>(".proposal .button:not(:disabled)") ?? box.current)?.focus();
  }, [seals, problem]);
  const accept = (seal: string, values?: Values) => {
    decided.current = seal;
    void gate.accept(seal, values);
  };
  const reject = (seal: string, reason: string) => {
    decided.current = seal;
    void gate.reject(seal, reason);
  };
  return (
    <div ref={box} className="queue" role="region" aria-label="Waiting for you" tabIndex={-1}>
      <p className="unseen" role="status">{waiting && (waiting.length === 1 ? "One change waits for you." : `${waiting.length} changes wait for you.`)}</p>
      {problem && <div className="alert" role="alert"><p>{problem}</p></div>}
      {!waiting && <Thinking>Looking</Thinking>}
      {waiting?.length === 0 && <p className="note">Nothing waits. Proposals of the models appear here. Nothing changes until a person approves.</p>}
      {waiting?.map((one) => (
        <Proposal key={one.seal} name={name} waiting={one} isSent={sent.includes(one.seal)} onAccept={(values) => accept(one.seal, values)} onReject={(reason) => reject(one.seal, reason)} />
      ))}
    </div>
  );
}

/** The current customers, and the latest decisions. */
export function Books({ state }: { state?: State }) {
  if (!state) return null;
  return (
    <>
      <section aria-labelledby="customers-title">
        <h2 id="customers-title">Customers</h2>
        <Customers customers={state.customers} />
      </section>
      <section aria-labelledby="decisions-title">
        <h2 id="decisions-title">Decided</h2>
        <Decisions decisions={state.decisions} />
      </section>
      <Argument />
    </>
  );
}

function Customers({ customers }: { customers: Customer[] }) {
  if (customers.length === 0) return <p className="note">No customers are left.</p>;
  return (
    <div className="table" tabIndex={0} role="group" aria-label="Customers">
      <table className="customers">
        <thead><tr><th scope="col">Id</th><th scope="col">Name</th><th scope="col">City</th><th scope="col">Plan</th></tr></thead>
        <tbody>
          {customers.map(({ id, name, email, city, plan }) => (
            <tr key={id}><td>{id}</td><td>{name}<span className="email">{email}</span></td><td>{city}</td><td>{plan}</td></tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Decisions({ decisions }: { decisions: Decision[] }) {
  if (decisions.length === 0) return <p className="note">Nothing yet.</p>;
  return (
    <ol className="decisions">
      {decisions.map(({ proposal, verdict, what, by, reason, at }) => (
        <li key={proposal}>
          <p className="decision-head"><Badge tone={VERDICTS[verdict]}>{verdict}</Badge><span className="by">{by}</span><time dateTime={new Date(at * 1000).toISOString()}>{new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })}</time></p>
          <p className="what">{what}</p>
          {reason && <p className="note">“{reason}”</p>}
        </li>
      ))}
    </ol>
  );
}

const Argument = () => (
  <details className="argument">
    <summary>Why the gate cannot be bypassed</summary>
    <ul>
      <li>No tool writes. The tools read and propose. The proposing tool only reads the decision.</li>
      <li>The records are a separate agent. No URL reaches it, and only the gatekeeper has its stub.</li>
      <li>One method writes: it stores the decision on a proposal. The change and the decision are one commit.</li>
      <li>A decision names the seal of what you saw. If the proposal or the customer has changed since, it is rejected.</li>
    </ul>
  </details>
);

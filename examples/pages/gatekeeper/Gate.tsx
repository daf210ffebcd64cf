import { useEffect, useRef } from "react";
import { Badge, Thinking } from "../design";
import type { Customer, Decision, Gate, State, Values } from "./gate";
import { Proposal } from "./Proposal";

const VERDICTS = { approved: "good", edited: "warn", rejected: "bad" } as const;

/** What waits for a person, the oldest agent first. */
export function Queue({ name, gate }: { name: string; gate: Gate }) {
  const { waiting, sent, problem } = gate;
  const box = useRef<HTMLDivElement>(null);
  const decided = useRef<string | null>(null);
  const seals = waiting?.map(({ seal }) => seal).join() ?? "";
  useEffect(() => {
    // What had the focus is gone, or was refused: what is next has it, until one goes elsewhere.
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
      {waiting?.length === 0 && <p className="note">Nothing waits. What a model wants to change shows up here, and stays as it is until somebody has decided.</p>}
      {waiting?.map((one) => (
        <Proposal key={one.seal} name={name} waiting={one} isSent={sent.includes(one.seal)} onAccept={(values) => accept(one.seal, values)} onReject={(reason) => reject(one.seal, reason)} />
      ))}
    </div>
  );
}

/** The records as they are, and what was decided about them. */
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
  if (customers.length === 0) return <p className="note">There is nobody left.</p>;
  return (
    <div className="table" tabIndex={0} role="group" aria-label="Customers">
      <table className="customers">
        <thead><tr><th scope="col">Id</th><th scope="col">Who</th><th scope="col">City</th><th scope="col">Plan</th></tr></thead>
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
    <summary>Why there is no way around</summary>
    <ul>
      <li>No tool of any model writes. They read, and they propose; what a proposal returns is only read.</li>
      <li>The records are an agent of their own. No URL leads to it, and nobody but the gatekeeper holds it.</li>
      <li>They change in one place, by a decision about a proposal. The change and the decision are one commit.</li>
      <li>A decision names what you saw, by its seal. If the proposal or the customer is another by now, it is refused.</li>
    </ul>
  </details>
);

import { type FormEvent, type KeyboardEvent, useEffect, useId, useRef, useState } from "react";
import { Cross, Hand, Pencil, Who } from "../design";
import { FIELDS, type Customer, type Values, type Waiting } from "./gate";

const TITLES = { add: "Add", change: "Change", delete: "Delete" };
type Props = { name: string; waiting: Waiting; isSent: boolean; onAccept: (values?: Values) => void; onReject: (reason: string) => void };

/** A proposed change with its preview, and the buttons to approve, edit or reject it. */
export function Proposal({ name, waiting, isSent, onAccept, onReject }: Props) {
  const [doing, setDoing] = useState<"editing" | "rejecting">();
  const { seal, by, what, change, outcome } = waiting;
  const title = useId();
  const card = useRef<HTMLElement>(null);
  const was = useRef<string>(undefined);
  useEffect(() => {
    // After a cancelled edit or rejection, focus the button that started it.
    if (!doing && was.current) card.current?.querySelector<HTMLElement>(`[data-begins="${was.current}"]`)?.focus();
    was.current = doing;
  }, [doing]);
  const onKey = (event: KeyboardEvent) => {
    if (event.key !== "Escape" || !doing) return;
    event.stopPropagation();
    setDoing(undefined);
  };
  const who = outcome.before ? `${outcome.before.name} (${outcome.before.id})` : (outcome.after?.name ?? `customer ${change.customer}`);
  return (
    <article ref={card} className="card is-asking proposal" aria-labelledby={title} data-seal={seal} onKeyDown={onKey}>
      <div className="card-head">
        <Hand />
        <div className="proposal-title">
          <h3 id={title} className="name">{TITLES[change.action]} {who}</h3>
          <p className="by">by {by}</p>
        </div>
      </div>
      <div className="card-body">
        {doing !== "editing" && <Difference before={outcome.before} after={outcome.after} />}
        {change.why && doing !== "editing" && <p className="proposal-why"><Who />{change.why}</p>}
        {outcome.problem && doing !== "editing" && <p className="proposal-problem">{outcome.problem}</p>}
        {doing === "editing" && outcome.after && <Edit before={outcome.before} after={outcome.after} onDone={onAccept} onCancel={() => setDoing(undefined)} isSent={isSent} />}
        {doing === "rejecting" && <Reject who={who} onDone={onReject} onCancel={() => setDoing(undefined)} isSent={isSent} />}
        {!doing && (
          <div className="card-foot">
            <button type="button" className="button is-main" disabled={isSent || Boolean(outcome.problem)} onClick={() => onAccept()}>Approve<span className="unseen">: {what}</span></button>
            {outcome.after && <button type="button" className="button" data-begins="editing" disabled={isSent} onClick={() => setDoing("editing")}><Pencil />Edit<span className="unseen">: {what}</span></button>}
            <button type="button" className="button" data-begins="rejecting" disabled={isSent} onClick={() => setDoing("rejecting")}><Cross />Reject<span className="unseen">: {what}</span></button>
          </div>
        )}
        {!doing && (
          <details className="terminal">
            <summary>From a terminal</summary>
            <pre tabIndex={0}><code>{`sapwood call Gatekeeper:${name} accept ${seal}\nsapwood call Gatekeeper:${name} reject ${seal} "Why not"`}</code></pre>
          </details>
        )}
      </div>
    </article>
  );
}

/** The fields that change: old values are struck out, new values are marked. */
function Difference({ before, after }: { before: Customer | null; after: Customer | null }) {
  const fields = FIELDS.filter((field) => before?.[field] !== after?.[field]);
  return (
    <dl className="difference">
      {fields.map((field) => (
        <div key={field}>
          <dt>{field}</dt>
          <dd>
            {before && <del><span className="unseen">from </span>{before[field]}</del>}
            {before && after && <span aria-hidden="true"> → </span>}
            {after && <ins><span className="unseen">to </span>{after[field] || "(empty)"}</ins>}
          </dd>
        </div>
      ))}
    </dl>
  );
}

type EditProps = { before: Customer | null; after: Customer; isSent: boolean; onDone: (values: Values) => void; onCancel: () => void };

function Edit({ before, after, isSent, onDone, onCancel }: EditProps) {
  const [values, setValues] = useState<Record<string, string>>(() => Object.fromEntries(FIELDS.map((field) => [field, after[field]])));
  const id = useId();
  const first = useRef<HTMLInputElement>(null);
  useEffect(() => first.current?.select(), []);
  const changed = FIELDS.filter((field) => values[field] !== before?.[field]);
  const focused = FIELDS.find((field) => after[field] !== before?.[field]) ?? "name";
  const submit = (event: FormEvent) => {
    event.preventDefault();
    onDone(Object.fromEntries(changed.map((field) => [field, values[field]])));
  };
  return (
    <form className="edit" onSubmit={submit}>
      {FIELDS.map((field) => (
        <div key={field} className="edit-row">
          <label htmlFor={`${id}-${field}`}>{field}</label>
          {field === "plan" ? (
            <select id={`${id}-${field}`} className="field" value={values.plan} onChange={(event) => setValues({ ...values, plan: event.target.value })}>
              {[...new Set(["free", "pro", "team", values.plan])].map((plan) => <option key={plan}>{plan}</option>)}
            </select>
          ) : (
            <input ref={field === focused ? first : undefined} id={`${id}-${field}`} className="field" value={values[field]} autoComplete="off" spellCheck={false} onChange={(event) => setValues({ ...values, [field]: event.target.value })} />
          )}
        </div>
      ))}
      <div className="card-foot">
        <button type="submit" className="button is-main" disabled={isSent || changed.length === 0}>Approve as edited</button>
        <button type="button" className="button" onClick={onCancel}>Cancel</button>
      </div>
    </form>
  );
}

function Reject({ who, isSent, onDone, onCancel }: { who: string; isSent: boolean; onDone: (reason: string) => void; onCancel: () => void }) {
  const [reason, setReason] = useState("");
  const id = useId();
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => input.current?.focus(), []);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    onDone(reason.trim());
  };
  return (
    <form className="edit" onSubmit={submit}>
      <label htmlFor={id}>Why not? The model gets your reason.</label>
      <input ref={input} id={id} className="field" value={reason} autoComplete="off" placeholder="No reason" onChange={(event) => setReason(event.target.value)} />
      <div className="card-foot">
        <button type="submit" className="button is-danger" disabled={isSent}>Reject<span className="unseen"> the proposal for {who}</span></button>
        <button type="button" className="button" onClick={onCancel}>Cancel</button>
      </div>
    </form>
  );
}

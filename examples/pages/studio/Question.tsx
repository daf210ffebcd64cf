// One question of an agent, with what answers it.

import { type FormEvent, type ReactNode, useId, useState } from "react";
import { type AdminError, ask } from "./api";
import { asError } from "./hooks";
import { JsonBox } from "./Json";
import { AgentName, ErrorNote, Field, isHidden, Shown } from "./parts";
import { useSession } from "./session";
import type { Json, QuestionRow } from "./types";

const TITLES: Record<QuestionRow["kind"], string> = { approval: "Approve", client: "Waits for a client", choice: "Choose", text: "Answer", form: "Fill in" };

type Answer = { answer: "approve" | "deny" | "value"; value?: Json; reason?: string };

export function Question({ row, onDone }: { row: QuestionRow; onDone: () => void }) {
  const session = useSession();
  const [error, setError] = useState<AdminError | null>(null);
  const [note, setNote] = useState("");
  const [isBusy, setBusy] = useState(false);
  const title = useId();
  const send = async (answer: Answer) => {
    setBusy(true);
    try {
      const { accepted } = await ask<{ accepted: boolean }>("answer", { address: row.address, id: row.id, digest: row.digest, ...answer });
      if (!accepted) setNote("It was answered by someone else, or has changed since.");
      onDone();
    } catch (failed) {
      setError(asError(failed));
    }
    setBusy(false);
  };
  const isMayAnswer = session.can("answer");
  return (
    <li className="card-row question" aria-labelledby={title}>
      <div className="card-row-head">
        <h2 id={title}>{row.tool ? <>{TITLES[row.kind]} <code>{row.tool}</code></> : row.prompt && !isHidden(row.prompt) ? row.prompt : TITLES[row.kind]}</h2>
        <span><AgentName address={row.address} tab="chat" /></span>
      </div>
      {row.prompt && isHidden(row.prompt) && <Shown value={row.prompt}>{() => null}</Shown>}
      {row.remote && <p className="muted">Asked by {row.remote.map(({ type, name }) => `${type} ${name}`).join(" / ") || "an agent"} on another server.</p>}
      {row.arguments && <Shown value={row.arguments}>{(value) => <JsonBox label="Arguments" value={value as Json} open={3} />}</Shown>}
      {isMayAnswer ? <Form row={row} send={send} isBusy={isBusy} /> : <p className="note">Answering needs a token with the scope <code>answer</code>.</p>}
      {note && <p className="note is-warn" role="status">{note}</p>}
      {error && <ErrorNote error={error} />}
    </li>
  );
}

type FormProps = { row: QuestionRow; send: (answer: Answer) => Promise<void>; isBusy: boolean };

function Form({ row, send, isBusy }: FormProps): ReactNode {
  if (row.kind === "approval") return <Approval row={row} send={send} isBusy={isBusy} />;
  const deny = <Deny send={send} isBusy={isBusy} label="Decline" />;
  if (row.kind === "client") return <><p className="muted">The result comes from the client that offers this tool. It can only be denied here.</p><Deny send={send} isBusy={isBusy} label="Deny" /></>;
  if (row.kind === "choice" && row.options && !isHidden(row.options))
    return <div className="row" role="group" aria-label="Options">{row.options.map((one) => <button key={one} type="button" className="button" disabled={isBusy} onClick={() => void send({ answer: "value", value: one })}>{one}</button>)}{deny}</div>;
  if (row.kind === "form") return <><FormOf schema={row.schema ?? {}} send={send} isBusy={isBusy} />{deny}</>;
  return <><TextAnswer send={send} isBusy={isBusy} />{deny}</>;
}

function Approval({ row, send, isBusy }: FormProps) {
  const [text, setText] = useState<string | null>(null);
  const [problem, setProblem] = useState("");
  const approve = () => {
    if (text === null) return void send({ answer: "approve" });
    try {
      setProblem("");
      void send({ answer: "approve", value: JSON.parse(text) });
    } catch (error) {
      setProblem(`The arguments are no JSON: ${(error as Error).message}`);
    }
  };
  const canEdit = row.arguments !== null && !isHidden(row.arguments);
  return (
    <>
      {text !== null && <Field label="Arguments as JSON">{(id) => <textarea id={id} className="area" rows={Math.min(12, text.split("\n").length + 1)} value={text} spellCheck={false} autoFocus onChange={(event) => setText(event.target.value)} />}</Field>}
      {problem && <p className="note is-bad" role="alert">{problem}</p>}
      <div className="row">
        <button type="button" className="button is-main" disabled={isBusy} onClick={approve}>Approve{text !== null ? " with changes" : ""}<span className="unseen"> {row.tool}</span></button>
        <Deny send={send} isBusy={isBusy} label="Deny" />
        {canEdit && <button type="button" className="button is-quiet" onClick={() => setText(text === null ? JSON.stringify(row.arguments, null, 2) : null)}>{text === null ? "Change arguments" : "Discard changes"}</button>}
      </div>
    </>
  );
}

function Deny({ send, isBusy, label }: Omit<FormProps, "row"> & { label: string }) {
  const [reason, setReason] = useState<string | null>(null);
  if (reason === null) return <button type="button" className="button" disabled={isBusy} onClick={() => setReason("")}>{label} …</button>;
  const submit = (event: FormEvent) => (event.preventDefault(), void send({ answer: "deny", reason: reason.trim() || undefined }));
  return (
    <form className="row deny" onSubmit={submit}>
      <Field label="Reason, for the agent" unseen>{(id) => <input id={id} type="text" value={reason} placeholder="Reason, for the agent (optional)" autoFocus autoComplete="off" onChange={(event) => setReason(event.target.value)} />}</Field>
      <button type="submit" className="button is-bad" disabled={isBusy}>{label}</button>
      <button type="button" className="button is-quiet" onClick={() => setReason(null)}>Keep it open</button>
    </form>
  );
}

function TextAnswer({ send, isBusy }: Omit<FormProps, "row">) {
  const [text, setText] = useState("");
  const submit = (event: FormEvent) => (event.preventDefault(), void send({ answer: "value", value: text }));
  return (
    <form className="answer" onSubmit={submit}>
      <Field label="Your answer" unseen>{(id) => <textarea id={id} className="area is-text" rows={2} value={text} placeholder="Your answer" onChange={(event) => setText(event.target.value)} />}</Field>
      <button type="submit" className="button is-main" disabled={isBusy || !text.trim()}>Answer</button>
    </form>
  );
}

type Property = { type?: string; title?: string; enum?: Json[]; description?: string };

/** Fields for the properties of a schema that are texts, numbers and booleans. All others are written as JSON. */
function FormOf({ schema, send, isBusy }: { schema: Record<string, Json>; send: FormProps["send"]; isBusy: boolean }) {
  const properties = Object.entries((schema.properties ?? {}) as Record<string, Property>);
  const isSimple = properties.length > 0 && properties.every(([, one]) => one.enum || ["string", "number", "integer", "boolean"].includes(one.type ?? ""));
  const [values, setValues] = useState<Record<string, Json>>({});
  const [text, setText] = useState("{}");
  const [problem, setProblem] = useState("");
  const required = new Set((schema.required ?? []) as string[]);
  const set = (name: string, value: Json) => setValues((old) => ({ ...old, [name]: value }));
  const submit = (event: FormEvent) => {
    event.preventDefault();
    try {
      void send({ answer: "value", value: isSimple ? values : JSON.parse(text) });
    } catch (error) {
      setProblem(`This is no JSON: ${(error as Error).message}`);
    }
  };
  return (
    <form className="answer" onSubmit={submit}>
      {isSimple ? properties.map(([name, one]) => (
        <Field key={name} label={`${one.title ?? name}${required.has(name) ? "" : " (optional)"}`}>{(id) => (
          one.enum ? <select id={id} required={required.has(name)} value={String(values[name] ?? "")} onChange={(event) => set(name, one.enum!.find((each) => String(each) === event.target.value) ?? null)}><option value="" />{one.enum.map((each) => <option key={String(each)}>{String(each)}</option>)}</select>
            : one.type === "boolean" ? <input id={id} type="checkbox" checked={Boolean(values[name])} onChange={(event) => set(name, event.target.checked)} />
              : one.type === "string" ? <input id={id} type="text" required={required.has(name)} value={String(values[name] ?? "")} onChange={(event) => set(name, event.target.value)} />
                : <input id={id} type="number" step={one.type === "integer" ? 1 : "any"} required={required.has(name)} value={String(values[name] ?? "")} onChange={(event) => set(name, event.target.valueAsNumber)} />
        )}</Field>
      )) : <Field label="Your answer as JSON">{(id) => <textarea id={id} className="area" rows={5} value={text} spellCheck={false} onChange={(event) => setText(event.target.value)} />}</Field>}
      {problem && <p className="note is-bad" role="alert">{problem}</p>}
      <button type="submit" className="button is-main" disabled={isBusy}>Answer</button>
    </form>
  );
}

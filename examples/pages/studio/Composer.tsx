// A message to a chat agent, as the operator, for its own model or another one of its class. The answer can be stopped.

import { type FormEvent, type KeyboardEvent, useEffect, useId, useRef, useState } from "react";
import { type AdminError, ask } from "./api";
import { asError } from "./hooks";
import { ErrorNote } from "./parts";
import { useSession } from "./session";
import { turnId } from "./spans";
import type { Address, Effect, Span } from "./types";

type Sent = Effect & { turn: string | null; models: string[] };

/** `own` is the turn that was begun here: it is stopped without a question. */
type Props = { address: Address; running?: Span; own: string | null; onSent: (turn: string | null) => void };

export function Composer({ address, running, own, onSent }: Props) {
  const session = useSession();
  const [text, setText] = useState("");
  const [effect, setEffect] = useState<string | null>(null);
  const [models, setModels] = useState<string[]>([]);
  const [model, setModel] = useState("");
  const [error, setError] = useState<AdminError | null>(null);
  const [isBusy, setBusy] = useState(false);
  const request = useRef<string | null>(null);
  const box = useRef<HTMLTextAreaElement>(null);
  const id = useId();
  const canSend = session.can("act");
  useEffect(() => {
    if (canSend) void ask<Sent>("send", { address, message: "", preview: true }).then((told) => setModels(told.models), () => undefined);
  }, [address, canSend]);
  if (!canSend) return null;
  const attempt = async (work: () => Promise<string>) => {
    setBusy(true);
    try {
      setEffect(await work());
      setError(null);
    } catch (failed) {
      setError(asError(failed));
    }
    setBusy(false);
  };
  const preview = (by = model) => void ask<Sent>("send", { address, message: "", model: by || null, preview: true }).then((told) => setEffect(told.effect), (failed) => setError(asError(failed)));
  const send = () => attempt(async () => {
    request.current ??= `studio-${Array.from(crypto.getRandomValues(new Uint8Array(8)), (one) => one.toString(16).padStart(2, "0")).join("")}`; // the same again if the answer was lost
    const told = await ask<Sent>("send", { address, message: text, id: request.current, model: model || null });
    request.current = null;
    setText("");
    onSent(told.turn);
    return told.effect;
  });
  const isOwn = running !== undefined && turnId(running) === own;
  const stop = () => attempt(async () => (await ask<Effect>("cancel-turn", { address, turn: turnId(running!) })).effect);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (text.trim() && !isBusy) void send();
    box.current?.focus();
  };
  const onKey = (event: KeyboardEvent<HTMLTextAreaElement>) => {
    if (event.key === "Enter" && !event.shiftKey && !event.nativeEvent.isComposing) submit(event);
  };
  return (
    <form className="say" onSubmit={submit}>
      {error && <ErrorNote error={error} />}
      <div className="say-row">
        <label className="unseen" htmlFor={id}>Message</label>
        <textarea ref={box} id={id} className="area is-text" rows={Math.min(6, text.split("\n").length)} value={text} placeholder="Message as the operator" aria-describedby={`${id}-effect`} onFocus={() => preview()} onChange={(event) => (setText(event.target.value), (request.current = null))} onKeyDown={onKey} />
        {models.length > 0 && (
          <>
            <label className="unseen" htmlFor={`${id}-model`}>Model</label>
            <select id={`${id}-model`} className="say-model" value={model} onChange={(event) => (setModel(event.target.value), (request.current = null), preview(event.target.value))}>
              <option value="">Its own model</option>
              {models.map((one) => <option key={one} value={one}>{one}</option>)}
            </select>
          </>
        )}
        {isOwn && <button type="button" className="button is-bad" disabled={isBusy} onClick={stop}>Stop</button>}
        <button type="submit" className="button is-main" disabled={!text.trim() || isBusy}>Send</button>
      </div>
      <p className="muted say-effect" id={`${id}-effect`} role="status">{effect}</p>
    </form>
  );
}

// Buttons that change something: the server says what would happen, and the user confirms.

import { type FormEvent, type ReactNode, useEffect, useId, useRef, useState, useSyncExternalStore } from "react";
import { type AdminError, ask } from "./api";
import { segments } from "./format";
import { asError } from "./hooks";
import { ErrorNote } from "./parts";
import { agentLink, go } from "./route";
import { useSession } from "./session";
import type { Effect } from "./types";

type Props = {
  label: string;
  /** What is asked before, as a title: "Cancel the run?". */
  title: string;
  endpoint: string;
  params: object;
  scope?: string;
  /** What it does, for endpoints without a preview. */
  effect?: string;
  /** The name that has to be typed first. It is sent as `name`. */
  confirmName?: string;
  isDanger?: boolean;
  icon?: ReactNode;
  /** Called before it is done; what it returns is called with how much was done, and yields how that ends. */
  watch?: () => Promise<(done: number) => AsyncGenerator<string>>;
  onDone: () => void;
};

/** A button with a confirmation. Tokens that lack the scope see none. */
export function ActButton(props: Props) {
  const session = useSession();
  if (!session.can(props.scope ?? "act")) return null;
  return <button type="button" className={`button is-small${props.isDanger ? " is-bad" : ""}`} onClick={() => open(props)}>{props.icon}{props.label}</button>;
}

/** A button that creates a root and opens it. */
export function CreateButton({ address }: { address: string }) {
  const { type, name } = segments(address)[0];
  return <ActButton label={`Create ${type} ${name}`} title={`Create ${type} ${name}?`} endpoint="create" params={{ address }} onDone={() => go(agentLink(address))} />;
}

let current: Props | null = null;
const listeners = new Set<() => void>();

function open(props: Props | null): void {
  current = props;
  listeners.forEach((tell) => tell());
}

const onOpen = (tell: () => void) => {
  listeners.add(tell);
  return () => void listeners.delete(tell);
};

/** The confirmation that is open. It stays when the row of its button goes, as it does when a dead letter is replayed. */
export function ActHost() {
  const props = useSyncExternalStore(onOpen, () => current);
  useEffect(() => () => void (current = null), []);
  return props && <ActDialog {...props} onClose={() => open(null)} />;
}

function ActDialog({ label, title, endpoint, params, effect, confirmName, isDanger, watch, onDone, onClose }: Props & { onClose: () => void }) {
  const [text, setText] = useState<string | null>(effect ?? null);
  const [name, setName] = useState("");
  const [error, setError] = useState<AdminError | null>(null);
  const [isBusy, setBusy] = useState(false);
  const [isOver, setOver] = useState(false);
  const dialog = useRef<HTMLDialogElement>(null);
  const close = useRef<HTMLButtonElement>(null);
  const yes = useRef<HTMLButtonElement>(null);
  const id = useId();
  useEffect(() => {
    const opener = document.activeElement as HTMLElement | null;
    dialog.current!.showModal();
    if (effect === undefined) void ask<Effect>(endpoint, { ...params, preview: true }).then((told) => setText(told.effect), (failed) => setError(asError(failed)));
    return () => void requestAnimationFrame(() => (opener?.isConnected ? opener : document.querySelector<HTMLElement>("main"))?.focus());
  }, []);
  useEffect(() => {
    if (text !== null && !confirmName) yes.current?.focus();
  }, [text]);
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    try {
      const outcomes = await watch?.();
      const told = await ask<Partial<Effect>>(endpoint, confirmName ? { ...params, name } : params);
      onDone();
      if (told.done !== 0 && !outcomes) return onClose();
      setOver(true);
      close.current?.focus();
      if (told.done && outcomes) {
        for await (const outcome of outcomes(told.done)) {
          if (!dialog.current) return;
          setText(outcome);
        }
        return onDone();
      }
      setText(told.effect ?? "Nothing was changed."); // it had ended, or something else changed it first
    } catch (failed) {
      setError(asError(failed));
      setBusy(false);
    }
  };
  return (
    <dialog ref={dialog} className="confirm" aria-labelledby={id} onCancel={(event) => (event.preventDefault(), onClose())} onClick={(event) => event.target === dialog.current && onClose()}>
      <form className="confirm-body" onSubmit={submit}>
        <h2 id={id}>{title}</h2>
        <p role="status">{text ?? (error ? "" : "Asking what this would do …")}</p>
        {error && <ErrorNote error={error} />}
        {confirmName && <div className="field"><label htmlFor={`${id}-name`}>Type <strong>{confirmName}</strong> to confirm</label><input id={`${id}-name`} type="text" autoFocus autoComplete="off" value={name} onChange={(event) => setName(event.target.value)} /></div>}
        <div className="confirm-foot">
          <button type="button" ref={close} className="button" onClick={onClose}>Close</button>
          {!isOver && <button type="submit" ref={yes} className={`button ${isDanger ? "is-danger" : "is-main"}`} disabled={isBusy || text === null || (confirmName !== undefined && name !== confirmName)}>{label}</button>}
        </div>
      </form>
    </dialog>
  );
}

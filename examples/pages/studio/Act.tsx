// Buttons that change something: the server says what would happen, and the user confirms.

import { type FormEvent, type ReactNode, useEffect, useId, useRef, useState } from "react";
import { createPortal } from "react-dom";
import { type AdminError, ask } from "./api";
import { asError } from "./hooks";
import { ErrorNote } from "./parts";
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
  onDone: () => void;
};

/** A button with a confirmation. Tokens that lack the scope see none. */
export function ActButton(props: Props) {
  const session = useSession();
  const [isOpen, setOpen] = useState(false);
  if (!session.can(props.scope ?? "act")) return null;
  return (
    <>
      <button type="button" className={`button is-small${props.isDanger ? " is-bad" : ""}`} onClick={() => setOpen(true)}>{props.icon}{props.label}</button>
      {isOpen && createPortal(<ActDialog {...props} onClose={() => setOpen(false)} />, document.body)}
    </>
  );
}

function ActDialog({ label, title, endpoint, params, effect, confirmName, isDanger, onDone, onClose }: Props & { onClose: () => void }) {
  const [text, setText] = useState<string | null>(effect ?? null);
  const [name, setName] = useState("");
  const [error, setError] = useState<AdminError | null>(null);
  const [isBusy, setBusy] = useState(false);
  const [isOver, setOver] = useState(false);
  const dialog = useRef<HTMLDialogElement>(null);
  const yes = useRef<HTMLButtonElement>(null);
  const id = useId();
  useEffect(() => {
    const opener = document.activeElement as HTMLElement | null;
    dialog.current!.showModal();
    if (effect === undefined) void ask<Effect>(endpoint, { ...params, preview: true }).then((told) => setText(told.effect), (failed) => setError(asError(failed)));
    return () => void requestAnimationFrame(() => opener?.isConnected && opener.focus());
  }, []);
  useEffect(() => {
    if (text !== null && !confirmName) yes.current?.focus();
  }, [text]);
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    try {
      const told = await ask<Partial<Effect>>(endpoint, confirmName ? { ...params, name } : params);
      onDone();
      if (told.done !== 0) return onClose();
      setOver(true); // it had ended, or something else changed it first
      setText(told.effect ?? "Nothing was changed.");
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
          <button type="button" className="button" onClick={onClose}>Close</button>
          {!isOver && <button type="submit" ref={yes} className={`button ${isDanger ? "is-danger" : "is-main"}`} disabled={isBusy || text === null || (confirmName !== undefined && name !== confirmName)}>{label}</button>}
        </div>
      </form>
    </dialog>
  );
}

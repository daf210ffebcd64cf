import { type MouseEvent, type ReactNode, useEffect, useRef } from "react";

/** A confirmation dialog for actions that cannot be undone. Escape, or a click outside, cancels. */
export function Confirm({ title, yes, onYes, onNo, children }: { title: string; yes: string; onYes: () => void; onNo: () => void; children: ReactNode }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const element = dialog.current!;
    const opener = document.activeElement as HTMLElement | null;
    element.showModal();
    return () => {
      element.close();
      requestAnimationFrame(() => opener?.isConnected && opener.focus());
    };
  }, []);
  const onClick = (event: MouseEvent) => event.target === dialog.current && onNo();
  return (
    <dialog ref={dialog} className="confirm" aria-labelledby="confirm-title" aria-describedby="confirm-text" onClick={onClick} onCancel={(event) => (event.preventDefault(), onNo())}>
      <div className="confirm-body">
        <h2 id="confirm-title">{title}</h2>
        <p id="confirm-text">{children}</p>
        <div className="confirm-foot">
          <button type="button" className="button" autoFocus onClick={onNo}>Cancel</button>
          <button type="button" className="button is-danger" onClick={onYes}>{yes}</button>
        </div>
      </div>
    </dialog>
  );
}

import { type FormEvent, type KeyboardEvent, type ReactNode, type RefObject, useEffect, useRef, useState } from "react";
import { Arrow, Down, Square } from "./icons";

/** Keep a box scrolled to its end while its content grows, unless the user scrolls up. */
export function useFollowing(box: RefObject<HTMLElement | null>, { slack, isOn = true }: { slack: number; isOn?: boolean }) {
  const follows = useRef(isOn);
  const before = useRef(0);
  const [isAway, setAway] = useState(false);
  const toEnd = () => {
    if (!box.current) return;
    box.current.scrollTo({ top: box.current.scrollHeight });
    before.current = box.current.scrollTop;
  };
  useEffect(() => {
    const watch = new ResizeObserver(() => follows.current && toEnd());
    watch.observe(box.current!);
    watch.observe(box.current!.firstElementChild!);
    return () => watch.disconnect();
  }, []);
  const onScroll = () => {
    const { scrollTop, scrollHeight, clientHeight } = box.current!;
    const isAtEnd = scrollHeight - scrollTop - clientHeight < slack;
    // The content may have grown since the last scroll. Only scrolling up means that the user wants to stay.
    if (isAtEnd || scrollTop < before.current) follows.current = isAtEnd && isOn;
    before.current = scrollTop;
    setAway(!follows.current);
  };
  const follow = () => {
    follows.current = true;
    toEnd();
  };
  return { isAway, onScroll, follow };
}

/** A list that stays scrolled to its end while it grows. If the user has scrolled up, a button leads back. */
export function Log({ label, isBusy, foot, children }: { label: string; isBusy: boolean; foot: ReactNode; children: ReactNode }) {
  const log = useRef<HTMLDivElement>(null);
  const { isAway, onScroll, follow } = useFollowing(log, { slack: 60 });
  return (
    <>
      <div ref={log} className="log" role="log" aria-label={label} aria-busy={isBusy} tabIndex={0} onScroll={onScroll}>
        <div className="log-column"><h2 className="unseen">{label}</h2>{children}</div>
      </div>
      <div className="composer" onSubmit={follow}>
        {isAway && <button type="button" className="button latest" onClick={follow}><Down />Latest</button>}
        {foot}
      </div>
    </>
  );
}

/** A message. Screen readers get its author as text. */
export function Message({ from, kind, isBusy, children }: { from: string; kind: "user" | "assistant" | "notice" | "given"; isBusy?: boolean; children: ReactNode }) {
  return (
    <article className={`message is-${kind}`} aria-busy={isBusy}>
      <span className="unseen">{from}: </span>
      {children}
    </article>
  );
}

type ComposerProps = {
  label: string;
  isBusy: boolean;
  disabled?: boolean;
  /** The accessible name of the text box. Required if a page has more than one. */
  id?: string;
  /** Set inside a dialog, where Escape closes the dialog instead of stopping the turn. The focus is not moved. */
  isInside?: boolean;
  onSend: (text: string) => void;
  onStop: () => void;
};

/** The text box: Enter sends, Shift+Enter starts a new line, Escape stops the turn. */
export function Composer({ label, isBusy, disabled, id = "composer", isInside = false, onSend, onStop }: ComposerProps) {
  const [text, setText] = useState("");
  const input = useRef<HTMLTextAreaElement>(null);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (!text.trim() || disabled) return;
    onSend(text.trim());
    setText("");
    input.current?.focus();
  };
  const onKey = (event: KeyboardEvent) => {
    if (event.key === "Escape" && isBusy && !isInside) {
      event.preventDefault();
      onStop();
    }
    if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
    event.preventDefault();
    input.current?.form?.requestSubmit(); // through the form, so that its submit handlers run
  };
  useEffect(() => {
    // Not on touch screens, where the keyboard would cover the page.
    if (!isInside && !matchMedia("(pointer: coarse)").matches) input.current?.focus();
  }, []);
  return (
    <form onSubmit={submit}>
      <label className="unseen" htmlFor={id}>{label}</label>
      <textarea id={id} ref={input} rows={1} value={text} placeholder={label} disabled={disabled} onChange={(event) => setText(event.target.value)} onKeyDown={onKey} />
      {isBusy && <button type="button" className="button is-round" aria-label="Stop" title={isInside ? "Stop" : "Stop (Esc)"} onClick={onStop}><Square /></button>}
      {(!isBusy || text.trim()) && (
        <button type="submit" className="button is-main is-round" aria-label="Send" title="Send (Enter)" disabled={!text.trim() || disabled}><Arrow /></button>
      )}
    </form>
  );
}

/** The text of a message, without its other parts. */
export const textOf = ({ parts }: { parts: { type: string; text?: string }[] }) => parts.map(({ type, text }) => (type === "text" ? text : "")).join("");

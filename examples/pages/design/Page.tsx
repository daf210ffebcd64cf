import { type ReactNode, useEffect, useRef, useState } from "react";
import { Cross, Mark } from "./icons";

type Tone = "plain" | "good" | "warn" | "bad";

/** A status in a few words. */
export function Badge({ tone = "plain", dot = false, busy = false, children }: { tone?: Tone; dot?: boolean; busy?: boolean; children: ReactNode }) {
  return (
    <span className={`badge is-${tone}`}>
      {dot && <span className={busy ? "dot is-busy" : "dot"} />}
      {children}
    </span>
  );
}

/** A button for actions that cannot be undone: the user must press it twice. */
export function SureButton({ label, sure, icon, disabled, onSure }: { label: string; sure: string; icon: ReactNode; disabled?: boolean; onSure: () => void }) {
  const [isAsking, ask] = useState(false);
  const press = () => {
    if (isAsking) onSure();
    ask(!isAsking);
  };
  return (
    <button type="button" className={isAsking ? "button is-bad" : "button is-quiet"} disabled={disabled} onClick={press} onBlur={() => ask(false)}>
      {icon}<span className={isAsking ? "" : "unseen-narrow"} aria-live="polite">{isAsking ? sure : label}</span>
    </button>
  );
}

type Panel = { title: string; icon: ReactNode; count: number; children: ReactNode };

/** The page: a header, the content, and a side panel. On a small screen a button opens the panel. */
export function Page({ title, head, side, children }: { title: string; head: ReactNode; side?: Panel; children: ReactNode }) {
  const [isOpen, open] = useState(false);
  const panel = useRef<HTMLElement>(null);
  const opener = useRef<HTMLButtonElement>(null);
  useEffect(() => {
    if (!isOpen) return;
    const button = opener.current;
    const wide = matchMedia("(min-width: 901px)");
    const close = () => open(false);
    const onKey = (event: KeyboardEvent) => event.key === "Escape" && close();
    panel.current?.querySelector("button")?.focus();
    document.addEventListener("keydown", onKey);
    wide.addEventListener("change", close);
    return () => {
      document.removeEventListener("keydown", onKey);
      wide.removeEventListener("change", close);
      requestAnimationFrame(() => button?.focus());
    };
  }, [isOpen]);
  return (
    <div className="page">
      <header className="head" inert={isOpen}>
        <Mark />
        <h1>{title}</h1>
        {head}
        {side && (
          <button ref={opener} type="button" className="button only-narrow" aria-expanded={isOpen} onClick={() => open(true)}>
            {side.icon}<span className="unseen">{side.title}: </span>{side.count}
          </button>
        )}
      </header>
      <main className="main" inert={isOpen}>{children}</main>
      {isOpen && <div className="veil" onClick={() => open(false)} />}
      {side && (
        <aside ref={panel} className={isOpen ? "side is-open" : "side"} aria-label={side.title}>
          <div className="side-head">
            <h2>{side.title}</h2>
            <button type="button" className="button is-quiet only-narrow" aria-label={`Close ${side.title}`} onClick={() => open(false)}><Cross /></button>
          </div>
          {side.children}
        </aside>
      )}
    </div>
  );
}

/** The placeholder of an empty conversation: an introduction and suggested messages. */
export function Empty({ title, suggestions, onSuggestion, children }: { title: string; suggestions: string[]; onSuggestion: (text: string) => void; children: ReactNode }) {
  return (
    <div className="empty">
      <Mark />
      <h2>{title}</h2>
      <p>{children}</p>
      <div className="suggestions" role="group" aria-label="Suggestions">
        {suggestions.map((text) => <button key={text} type="button" className="button" onClick={() => onSuggestion(text)}>{text}</button>)}
      </div>
    </div>
  );
}

/** An error message with a button for the remedy. */
export function Alert({ text, action, onAction }: { text: string; action: string; onAction: () => void }) {
  return (
    <div className="alert" role="alert">
      <p>{text}</p>
      <button type="button" className="button" onClick={onAction}>{action}</button>
    </div>
  );
}

export const Thinking = ({ children }: { children: ReactNode }) => (
  <div className="thinking" role="status"><span className="dots" aria-hidden="true"><i /><i /><i /></span>{children}</div>
);

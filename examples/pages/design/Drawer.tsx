import { type KeyboardEvent, type MouseEvent, type ReactNode, useEffect, useRef } from "react";

const REACHABLE = "a[href], button:not(:disabled), textarea:not(:disabled), input:not(:disabled), summary, [tabindex='0']";

type Props = { label: string; onClose: () => void; returnTo: () => HTMLElement | null; children: ReactNode };

/** A modal side panel. Escape, a click outside, or a button inside closes it. */
export function Drawer({ label, onClose, returnTo, children, ...data }: Props & { [name: `data-${string}`]: string | undefined }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const back = useRef(returnTo);
  back.current = returnTo;
  useEffect(() => {
    const element = dialog.current!;
    element.showModal();
    element.focus();
    return () => {
      element.close();
      // After the close is rendered: React may have replaced the element that opened it.
      requestAnimationFrame(() => back.current()?.focus());
    };
  }, []);
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Tab") trapFocus(event, dialog.current!);
    event.stopPropagation();
  };
  const onClick = (event: MouseEvent) => event.target === dialog.current && onClose();
  return (
    <dialog
      ref={dialog}
      className="drawer"
      role="dialog"
      aria-modal="true"
      aria-label={label}
      tabIndex={-1}
      onKeyDown={onKeyDown}
      onClick={onClick}
      onCancel={(event) => (event.preventDefault(), onClose())}
      {...data}
    >
      <div className="drawer-body">{children}</div>
    </dialog>
  );
}

/** Keep the focus inside: Tab goes from the last element to the first, and back. */
function trapFocus(event: KeyboardEvent, dialog: HTMLElement): void {
  const reachable = [...dialog.querySelectorAll<HTMLElement>(REACHABLE)].filter((one) => one.checkVisibility() && !one.closest("[inert]"));
  const [from, to] = event.shiftKey ? [reachable[0], reachable.at(-1)] : [reachable.at(-1), reachable[0]];
  const isAtEdge = document.activeElement === from || (event.shiftKey && !reachable.includes(document.activeElement as HTMLElement));
  if (!isAtEdge || !to) return;
  event.preventDefault();
  to.focus();
}

export type Crumb = { key: string; label: string; href: string; onOpen: () => void };

/** The path from the root agent to the agent that is shown. All items but the last are links. */
export function Breadcrumbs({ crumbs }: { crumbs: Crumb[] }) {
  return (
    <nav className="crumbs" aria-label="Breadcrumb">
      <ol>
        {crumbs.map(({ key, label, href, onOpen }, at) => (
          <li key={key}>
            {at < crumbs.length - 1 ? <Link href={href} onOpen={onOpen}>{label}</Link> : <span aria-current="page">{label}</span>}
          </li>
        ))}
      </ol>
    </nav>
  );
}

type LinkProps = { href: string; onOpen: () => void; label?: string; title?: string; className?: string; id?: string; current?: boolean; children: ReactNode };

/** A link for client-side navigation. Opened in a new tab or copied, it is an ordinary link. */
export function Link({ href, onOpen, label, current, children, ...rest }: LinkProps & { [name: `data-${string}`]: string | undefined }) {
  const onClick = (event: MouseEvent) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    onOpen();
  };
  return <a href={href} aria-label={label} aria-current={current || undefined} onClick={onClick} {...rest}>{children}</a>;
}

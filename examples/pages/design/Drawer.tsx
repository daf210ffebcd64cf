import { type KeyboardEvent, type MouseEvent, type ReactNode, useEffect, useRef } from "react";

const REACHABLE = "a[href], button:not(:disabled), textarea:not(:disabled), input:not(:disabled), summary, [tabindex='0']";

type Props = { label: string; onClose: () => void; returnTo: () => HTMLElement | null; children: ReactNode };

/** Something that is laid over the page from its side. The page waits below it until Escape, a click beside it, or a button in it closes it. */
export function Drawer({ label, onClose, returnTo, children, ...data }: Props & { [name: `data-${string}`]: string | undefined }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const back = useRef(returnTo);
  back.current = returnTo;
  useEffect(() => {
    const shown = dialog.current!;
    shown.showModal();
    shown.focus();
    return () => {
      shown.close();
      // When all that closes it is over: who opened it may be drawn anew.
      requestAnimationFrame(() => back.current()?.focus());
    };
  }, []);
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Tab") stay(event, dialog.current!);
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

/** Lead the focus from the last element to the first, and back, instead of out of here. */
function stay(event: KeyboardEvent, dialog: HTMLElement): void {
  const reachable = [...dialog.querySelectorAll<HTMLElement>(REACHABLE)].filter((one) => one.checkVisibility() && !one.closest("[inert]"));
  const [from, to] = event.shiftKey ? [reachable[0], reachable.at(-1)] : [reachable.at(-1), reachable[0]];
  const isAtEdge = document.activeElement === from || (event.shiftKey && !reachable.includes(document.activeElement as HTMLElement));
  if (!isAtEdge || !to) return;
  event.preventDefault();
  to.focus();
}

export type Crumb = { key: string; label: string; href: string; onOpen: () => void };

/** The way from the outermost to what is shown. All but the last lead there. */
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

/** A link that this page follows by itself; in a new tab or copied it is a link as any other. */
export function Link({ href, onOpen, label, current, children, ...rest }: LinkProps & { [name: `data-${string}`]: string | undefined }) {
  const onClick = (event: MouseEvent) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    onOpen();
  };
  return <a href={href} aria-label={label} aria-current={current || undefined} onClick={onClick} {...rest}>{children}</a>;
}

// A list of lines of one height, of which only those on the screen are in the document.

import { type CSSProperties, type KeyboardEvent, type ReactNode, useCallback, useEffect, useLayoutEffect, useRef, useState } from "react";

const MARGIN = 8;

type Props = {
  count: number;
  height: number;
  label: string;
  role: "tree" | "listbox" | "grid" | "list";
  /** The index of the line with the keyboard focus. */
  active: number;
  onActive: (index: number) => void;
  /** Called with keys that do not move the focus. Returns whether it was handled. */
  onKey?: (event: KeyboardEvent, index: number) => boolean;
  onRange?: (from: number, to: number) => void;
  idOf: (index: number) => string;
  className?: string;
  children: (index: number, style: CSSProperties) => ReactNode;
};

export function VirtualList({ count, height, label, role, active, onActive, onKey, onRange, idOf, className = "", children }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const [range, setRange] = useState<[number, number]>([0, 40]);
  const measure = useCallback(() => {
    if (!box.current) return;
    const { scrollTop, clientHeight } = box.current;
    const from = Math.max(0, Math.floor(scrollTop / height) - MARGIN);
    const to = Math.min(count, Math.ceil((scrollTop + clientHeight) / height) + MARGIN);
    setRange(([a, b]) => (a === from && b === to ? [a, b] : [from, to]));
  }, [count, height]);
  useLayoutEffect(measure, [measure]);
  useEffect(() => {
    const watch = new ResizeObserver(measure);
    watch.observe(box.current!);
    return () => watch.disconnect();
  }, [measure]);
  const [from, to] = [Math.min(range[0], count), Math.min(range[1], count)];
  useEffect(() => onRange?.(from, to), [from, to, onRange]);

  const moveTo = (index: number) => {
    const at = Math.max(0, Math.min(count - 1, index));
    const { scrollTop, clientHeight } = box.current!;
    if (at * height < scrollTop) box.current!.scrollTop = at * height;
    else if ((at + 1) * height > scrollTop + clientHeight) box.current!.scrollTop = (at + 1) * height - clientHeight;
    measure();
    onActive(at);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.target !== event.currentTarget || event.metaKey || event.ctrlKey || event.altKey) return;
    const whole = Math.max(1, Math.floor(box.current!.clientHeight / height) - 1);
    const steps: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, PageDown: whole, PageUp: -whole, Home: -count, End: count };
    if (event.key in steps) moveTo(active + steps[event.key]);
    else if (!onKey?.(event, active)) return;
    event.preventDefault();
  };
  const lines: ReactNode[] = [];
  const style = (index: number): CSSProperties => ({ position: "absolute", top: index * height, left: 0, right: 0, height });
  for (let at = from; at < to; at++) lines.push(children(at, style(at)));
  const isActiveShown = count > 0 && active >= from && active < to;
  return (
    <div ref={box} className={`virtual ${className}`} role={role} aria-label={label} tabIndex={0} aria-activedescendant={isActiveShown ? idOf(active) : undefined} onScroll={measure} onKeyDown={onKeyDown}>
      <div role="presentation" style={{ position: "relative", height: count * height }}>{lines}</div>
    </div>
  );
}

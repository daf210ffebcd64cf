import type { ReactNode } from "react";

const Icon = ({ children, className = "icon" }: { children: ReactNode; className?: string }) => (
  <svg className={className} viewBox="0 0 24 24" aria-hidden="true" focusable="false">{children}</svg>
);

/** The logo: a trunk and its branches, grown as the rings of a tree. */
export const Mark = () => (
  <svg className="mark" viewBox="0 0 32 32" aria-hidden="true" focusable="false" fill="none" stroke="currentColor" strokeWidth="3.1" strokeLinecap="round">
    <path d="M16 30.4V13.6M16 29.4C16 24.4 20.4 26.1 24.3 22.2A12 12 0 1 0 5.6 19.6M16 22.8C16 19.6 13 19.2 11.5 17.6A6 6 0 1 1 21.5 11.2" />
  </svg>
);

export const Arrow = () => <Icon><path d="M12 19V5M6 11l6-6 6 6" /></Icon>;
export const Down = () => <Icon><path d="M12 5v14M6 13l6 6 6-6" /></Icon>;
export const Square = () => <Icon><rect x="7" y="7" width="10" height="10" rx="2" fill="currentColor" /></Icon>;
export const Again = () => <Icon><path d="M20 11a8 8 0 1 0-2 6M20 5v6h-6" /></Icon>;
export const Bin = () => <Icon><path d="M5 7h14M10 7V5h4v2M7 7l1 12h8l1-12" /></Icon>;
export const Gear = () => <Icon><path d="M14.5 6.5a4 4 0 0 0-5.3 4.9L4 16.6 7.4 20l5.2-5.2a4 4 0 0 0 4.9-5.3L15 12l-3-3z" /></Icon>;
export const Hand = () => <Icon><circle cx="12" cy="12" r="9" /><path d="M12 7.5v5.5M12 16.2v.1" /></Icon>;
export const Screen = () => <Icon><rect x="3" y="5" width="18" height="12" rx="2" /><path d="M9 21h6" /></Icon>;
export const Bell = () => <Icon><path d="M6 16v-5a6 6 0 0 1 12 0v5l1.5 2h-15zM10 21h4" /></Icon>;
export const Turn = () => <Icon className="icon turn"><path d="M9 6l6 6-6 6" /></Icon>;
export const Cross = () => <Icon><path d="M6 6l12 12M18 6L6 18" /></Icon>;
export const Out = () => <Icon><path d="M8 16L17 7M9.5 7H17v7.5" /></Icon>;
export const Thought = () => <Icon><path d="M9 18h6M10 21h4M8.5 15.5a6 6 0 1 1 7 0c-.7.6-1 1.3-1 2.5h-5c0-1.2-.3-1.9-1-2.5z" /></Icon>;
export const Glass = () => <Icon><circle cx="11" cy="11" r="6.5" /><path d="M16 16l4.5 4.5" /></Icon>;
export const Plan = () => <Icon><path d="M9 6h11M9 12h11M9 18h11M4.5 6h.01M4.5 12h.01M4.5 18h.01" /></Icon>;
export const Who = () => <Icon><circle cx="12" cy="9" r="4" /><path d="M5 20c.8-4 3.5-6 7-6s6.2 2 7 6" /></Icon>;
export const Chain = () => <Icon><path d="M10 14a4 4 0 0 0 5.7 0l3.1-3.1a4 4 0 0 0-5.7-5.7L12 6.3M14 10a4 4 0 0 0-5.7 0l-3.1 3.1a4 4 0 0 0 5.7 5.7l1.1-1.1" /></Icon>;
export const Plus = () => <Icon><path d="M12 5v14M5 12h14" /></Icon>;
export const Pencil = () => <Icon><path d="M4 20l1-4L16 5l3 3L8 19zM14 7l3 3" /></Icon>;
export const Back = () => <Icon><path d="M19 12H5M11 6l-6 6 6 6" /></Icon>;
export const Leave = () => <Icon><path d="M14 5H6v14h8M11 12h9M17 8.5l3.5 3.5-3.5 3.5" /></Icon>;
export const Cart = () => <Icon><path d="M3 5h2.5l2 10h10l2-7.5H6.5M9 19.5h.01M16.5 19.5h.01" /></Icon>;
export const Coins = () => <Icon><ellipse cx="12" cy="7" rx="7" ry="3" /><path d="M5 7v5c0 1.7 3.1 3 7 3s7-1.3 7-3V7M5 12v5c0 1.7 3.1 3 7 3s7-1.3 7-3v-5" /></Icon>;

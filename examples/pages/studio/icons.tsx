import type { ReactNode } from "react";

const Icon = ({ children }: { children: ReactNode }) => <svg className="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false">{children}</svg>;

export const Pulse = () => <Icon><path d="M3 12h4l3-7 4 14 3-7h4" /></Icon>;
export const Branches = () => <Icon><circle cx="6" cy="5" r="2" /><circle cx="6" cy="19" r="2" /><circle cx="18" cy="12" r="2" /><path d="M6 7v10M6 12h10" /></Icon>;
export const Tray = () => <Icon><path d="M4 13l2.5-8h11L20 13v6H4zM4 13h5l1 2.5h4l1-2.5h5" /></Icon>;
export const Clock = () => <Icon><circle cx="12" cy="12" r="8.5" /><path d="M12 7v5l3.5 2" /></Icon>;
export const Coin = () => <Icon><circle cx="12" cy="12" r="8.5" /><path d="M14.8 9.2c-.5-1-1.5-1.5-2.8-1.5-1.7 0-2.9.8-2.9 2.1 0 3 5.9 1.4 5.9 4.4 0 1.3-1.2 2.2-3 2.2-1.5 0-2.6-.6-3.1-1.7M12 6v1.7M12 16.3V18" /></Icon>;
export const Rack = () => <Icon><rect x="4" y="4" width="16" height="6.5" rx="1.5" /><rect x="4" y="13.5" width="16" height="6.5" rx="1.5" /><path d="M7.5 7.2h.01M7.5 16.8h.01" /></Icon>;
export const Good = () => <Icon><path d="M5 12.5l4.5 4.5L19 7.5" /></Icon>;
export const Warning = () => <Icon><path d="M12 4l9 16H3zM12 10v4.5M12 17.2v.1" /></Icon>;
export const Copy = () => <Icon><rect x="8.5" y="8.5" width="11" height="11" rx="2" /><path d="M15.5 8.5v-2a2 2 0 0 0-2-2h-7a2 2 0 0 0-2 2v7a2 2 0 0 0 2 2h2" /></Icon>;

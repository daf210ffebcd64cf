// The lab, as the hooks of the npm packages know it: everything that is shown of code is its state.
import { useAgent } from "agents/react";
import { useState } from "react";

export type Call = { city: string; answer: string | null; made: number };
export type CodeRun = {
  id: string;
  code: string;
  begun: number;
  printed: string;
  value: string | null;
  kind: string | null;
  message: string;
  line: number | null;
  status: "running" | "paused" | "done" | "refused" | "stopped";
  calls: Call[];
};
export type Escape = { id: string; way: string; code: string };
export type Customer = { name: string; city: string; plan: string; pays: number };
export type Limits = { seconds: number; memory_bytes: number; depth: number; calls: number; output_bytes: number };
export type Shown = { model: string; limits: Limits; escapes: Escape[]; runs: CodeRun[]; customers: Customer[] };

export function useLab(name: string) {
  const [state, setState] = useState<Shown>();
  const [isConnected, setConnected] = useState(false);
  const agent = useAgent<Shown>({ agent: "Lab", name, onStateUpdate: setState, onOpen: () => setConnected(true), onClose: () => setConnected(false), maxReconnectionDelay: 2000 });
  return { agent, state, isConnected };
}

/** The address of the other page of this lab. */
export function otherPage(): string {
  const asked = new URLSearchParams(location.search);
  if (asked.has("escapes")) asked.delete("escapes");
  else asked.set("escapes", "");
  return `?${asked}`;
}

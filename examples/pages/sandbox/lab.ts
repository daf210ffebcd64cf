// The hook of the lab. Its state has everything that the page shows about the code.
import { useAgent } from "agents/react";
import { useState } from "react";

export type Call = { city: string; answer: string | null; attempts: number };
export type CodeRun = {
  id: string;
  code: string;
  starts: number;
  printed: string;
  value: string | null;
  kind: string | null;
  message: string;
  line: number | null;
  status: "running" | "paused" | "done" | "refused" | "stopped";
  calls: Call[];
};
export type Escape = { id: string; title: string; code: string };
export type Customer = { name: string; city: string; plan: string; pays: number };
export type Limits = { seconds: number; memory_bytes: number; depth: number; calls: number; output_bytes: number };
export type State = { model: string; limits: Limits; escapes: Escape[]; runs: CodeRun[]; customers: Customer[] };

export function useLab(name: string) {
  const [state, setState] = useState<State>();
  const [isConnected, setConnected] = useState(false);
  const agent = useAgent<State>({ agent: "Lab", name, onStateUpdate: setState, onOpen: () => setConnected(true), onClose: () => setConnected(false), maxReconnectionDelay: 2000 });
  return { agent, state, isConnected };
}

/** The URL of the other page of this lab. */
export function otherPage(): string {
  const query = new URLSearchParams(location.search);
  if (query.has("escapes")) query.delete("escapes");
  else query.set("escapes", "");
  return `?${query}`;
}

// The hooks of the panel: its state has the discussions, and the events of its runs have the answers.
import { useAgent, useAgentToolEvents } from "agents/react";
import type { UIMessage } from "ai";
import { useCallback, useEffect, useRef, useState } from "react";

export type Rule = "settle" | "quorum" | "race";
export type Lane = {
  run: string;
  who: string;
  status: "running" | "completed" | "error" | "aborted" | "interrupted";
  /** Seconds since the epoch, by the clock of the server. */
  began: number;
  ended: number | null;
  reason: string | null;
  error: string | null;
};
export type Discussion = { id: string; question: string; rule: Rule; outcome: "summed up" | "not summed up" | "too few" | "stopped" | null; lanes: Lane[] };
export type State = { model: string; discussions: Discussion[] };
export type Part = UIMessage["parts"][number];
export type Run = ReturnType<typeof useAgentToolEvents<Part>>["runsById"][string];

// --8<-- [start:hooks]
export function usePanel(user: string) {
  const [isConnected, setConnected] = useState(false);
  const agent = useAgent<State>({ agent: "Panel", name: user, onOpen: () => setConnected(true), onClose: () => setConnected(false), maxReconnectionDelay: 2000 });
  const { runsById } = useAgentToolEvents<Part>({ agent });
  const call = useCall(agent);
  const ahead = useAhead(call, isConnected);
  return { state: agent.state, runs: runsById, call, ahead, isConnected };
}
// --8<-- [end:hooks]

export type Call = <T>(method: string, ...args: unknown[]) => Promise<T>;

/** Returns a function that calls the panel. It retries calls that were in progress when the connection broke: all methods are idempotent. */
function useCall(panel: { call: (method: string, args: unknown[]) => Promise<unknown>; connectionError: Error | null }): Call {
  const latest = useRef(panel);
  latest.current = panel;
  return useCallback(async <T,>(method: string, ...args: unknown[]) => {
    for (;;) {
      try {
        return (await latest.current.call(method, args)) as T;
      } catch (error) {
        if ((error as Error).message !== "Connection closed" || latest.current.connectionError) throw error;
      }
    }
  }, []);
}

/** The seconds by which the clock of the browser is ahead of the server's. */
function useAhead(call: Call, isConnected: boolean): number {
  const [ahead, setAhead] = useState(0);
  useEffect(() => {
    if (isConnected) call<number>("now").then((now) => setAhead(Date.now() / 1000 - now), () => undefined);
  }, [call, isConnected]);
  return ahead;
}

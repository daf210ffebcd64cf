// What waits at the gate, and what a person makes of it.
import { useAgent } from "agents/react";
import { useCallback, useEffect, useRef, useState } from "react";

export const FIELDS = ["name", "email", "city", "plan"] as const;
export type Field = (typeof FIELDS)[number];
export type Values = Partial<Record<Field, string>>;
export type Customer = Record<Field, string> & { id: number };
export type Change = { action: "add" | "change" | "delete"; customer: number | null; values: Values; why: string };
export type Waiting = { seal: string; by: string; what: string; change: Change; outcome: { before: Customer | null; after: Customer | null; problem: string } };
export type Decision = { proposal: string; verdict: "approved" | "edited" | "rejected"; by: string; what: string; reason: string; at: number };
export type State = { model: string; customers: Customer[]; decisions: Decision[] };

/** After these frames something else may wait. */
const TELLING = /"type":"(?:sapwood_questions|cf_agent_state|cf_agent_chat_messages|cf_agent_chat_clear|cf_agent_message_updated)"|"done":true/;

export type Gate = ReturnType<typeof useGate>;

/** The gate of an agent: what waits, and the two things to be done about it. */
export function useGate(agent: ReturnType<typeof useAgent<State>>) {
  const [waiting, setWaiting] = useState<Waiting[]>();
  const [problem, setProblem] = useState("");
  const [sent, setSent] = useState<string[]>([]);
  const latest = useRef(0);
  const look = useCallback(async () => {
    const turn = ++latest.current;
    const found = await agent.call<Waiting[]>("waiting").catch(() => undefined);
    if (!found || turn !== latest.current) return;
    setWaiting(found);
    setSent((seals) => seals.filter((seal) => found.some((one) => one.seal === seal)));
  }, [agent]);
  useEffect(() => {
    let soon: ReturnType<typeof setTimeout>;
    const later = () => {
      clearTimeout(soon);
      soon = setTimeout(look, 30);
    };
    const onMessage = ({ data }: MessageEvent) => typeof data === "string" && TELLING.test(data) && later();
    const onOpen = () => {
      setSent([]); // what was sent to a server that is no more has to be sent again
      later();
    };
    agent.addEventListener("message", onMessage);
    agent.addEventListener("open", onOpen);
    later();
    return () => {
      clearTimeout(soon);
      agent.removeEventListener("message", onMessage);
      agent.removeEventListener("open", onOpen);
    };
  }, [agent, look]);
  const decide = async (seal: string, decision: Promise<Decision>) => {
    setProblem("");
    setSent((seals) => [...seals, seal]);
    const refused = await decision.then(() => "", (error: Error) => error.message);
    setProblem(/connection/i.test(refused) ? "" : refused);
    setSent((seals) => seals.filter((one) => one !== seal));
    await look();
  };
  const accept = (seal: string, values?: Values) => decide(seal, agent.call<Decision>("accept", values ? [seal, values] : [seal]));
  const reject = (seal: string, reason: string) => decide(seal, agent.call<Decision>("reject", [seal, reason]));
  return { waiting, sent, problem, accept, reject };
}

// The proposals at the gate, and the calls that decide them.
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

/** Frames after which the list of proposals may have changed. */
const CHANGE_FRAMES = /"type":"(?:sapwood_questions|cf_agent_state|cf_agent_chat_messages|cf_agent_chat_clear|cf_agent_message_updated)"|"done":true/;

export type Gate = ReturnType<typeof useGate>;

/** The gate of an agent: the waiting proposals, `accept` and `reject`. */
export function useGate(agent: ReturnType<typeof useAgent<State>>) {
  const [waiting, setWaiting] = useState<Waiting[]>();
  const [problem, setProblem] = useState("");
  const [sent, setSent] = useState<string[]>([]);
  const latest = useRef(0);
  const reload = useCallback(async () => {
    const turn = ++latest.current;
    const proposals = await agent.call<Waiting[]>("waiting").catch(() => undefined);
    if (!proposals || turn !== latest.current) return;
    setWaiting(proposals);
    setSent((seals) => seals.filter((seal) => proposals.some((one) => one.seal === seal)));
  }, [agent]);
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout>;
    const scheduleReload = () => {
      clearTimeout(timer);
      timer = setTimeout(reload, 30);
    };
    const onMessage = ({ data }: MessageEvent) => typeof data === "string" && CHANGE_FRAMES.test(data) && scheduleReload();
    const onOpen = () => {
      setSent([]); // a decision may be lost with the old connection: allow another click
      scheduleReload();
    };
    agent.addEventListener("message", onMessage);
    agent.addEventListener("open", onOpen);
    scheduleReload();
    return () => {
      clearTimeout(timer);
      agent.removeEventListener("message", onMessage);
      agent.removeEventListener("open", onOpen);
    };
  }, [agent, reload]);
  const decide = async (seal: string, decision: Promise<Decision>) => {
    setProblem("");
    setSent((seals) => [...seals, seal]);
    const error = await decision.then(() => "", ({ message }: Error) => message);
    setProblem(/connection/i.test(error) ? "" : error);
    setSent((seals) => seals.filter((one) => one !== seal));
    await reload();
  };
  const accept = (seal: string, values?: Values) => decide(seal, agent.call<Decision>("accept", values ? [seal, values] : [seal]));
  const reject = (seal: string, reason: string) => decide(seal, agent.call<Decision>("reject", [seal, reason]));
  return { waiting, sent, problem, accept, reject };
}

import { getToolPartState } from "@cloudflare/ai-chat/react";
import { useAgent, useAgentToolEvents } from "agents/react";
import { type DynamicToolUIPart, type ToolUIPart, type UIMessage, getToolName, isToolUIPart } from "ai";
import { Badge, Delegation, Delegations, Glass, Hand, RunPanel, Text, ToolLine, Who } from "../design";
import type { Change } from "./gate";

export type Part = UIMessage["parts"][number];
type Runs = ReturnType<typeof useAgentToolEvents<Part>>;
type Run = Runs["runsById"][string];
type Call = ToolUIPart | DynamicToolUIPart;
type Step = { agent: string; name: string };
type Props = { name: string; parts: Part[]; isGrowing: boolean; at: Step[]; runs?: Runs };

/** The parts of a message: text, proposals, and other tool calls with the helpers that they started. */
export function Parts({ name, parts, isGrowing, at, runs }: Props) {
  return parts.map((part, number) => {
    if (part.type === "text") return part.text && <Text key={number} text={part.text} growing={isGrowing && number === parts.length - 1} />;
    if (!isToolUIPart(part)) return null;
    const tool = getToolName(part);
    const started = runs?.getRunsForToolCall(part.toolCallId) ?? [];
    if (tool === "propose") return <Proposed key={part.toolCallId} call={part} />;
    if (started.length > 0) {
      return <Delegations key={part.toolCallId}><Delegation tool={tool}>{started.map((run) => <Helper key={run.runId} name={name} run={run} at={at} />)}</Delegation></Delegations>;
    }
    return <ToolLine key={part.toolCallId} name={tool} state={getToolPartState(part)} input={part.input} output={part.state === "output-available" ? part.output : undefined} error={part.state === "output-error" ? part.errorText : undefined} />;
  });
}

/** A proposal in the conversation: one line with its status. */
function Proposed({ call }: { call: Call }) {
  const [tone, words] = statusOf(call);
  return (
    <p className="proposed"><Hand /><span className="what">{sentence(call.input as Partial<Change> | undefined)}</span><Badge tone={tone} dot busy={tone === "warn"}>{words}</Badge></p>
  );
}

function statusOf(call: Call): ["plain" | "good" | "warn" | "bad", string] {
  const state = getToolPartState(call);
  if (state === "waiting-approval") return ["warn", "at the gate"];
  if (state === "complete") return typeof call.output === "string" && call.output.includes("other values") ? ["good", "done, edited"] : ["good", "done"];
  if (state === "denied") return ["bad", "rejected"];
  if (state === "error") return ["bad", "not done"];
  return ["plain", "proposing"];
}

function sentence(change?: Partial<Change>): string {
  if (!change?.action) return "Proposing a change";
  const values = Object.entries(change.values ?? {}).map(([field, value]) => `${field} “${value}”`).join(", ");
  if (change.action === "add") return `Add ${change.values?.name ?? "a customer"}`;
  return change.action === "delete" ? `Delete customer ${change.customer}` : `Change customer ${change.customer}: ${values}`;
}

/** One run, as its caller sees it. */
function Helper({ name, run, at }: { name: string; run: Run; at: Step[] }) {
  const { runId, agentType, status, summary } = run;
  const inside = [...at, { agent: agentType, name: runId }];
  const props = { name, parts: run.parts, isGrowing: status === "running", at: inside };
  return (
    <RunPanel
      id={runId}
      kind={agentType}
      name={agentType}
      icon={agentType === "Auditor" ? <Glass /> : <Who />}
      task={taskOf(run.inputPreview)}
      status={status}
      result={summary}
      error={status === "error" || status === "interrupted" ? run.error || "It failed." : undefined}
      onOpen={() => undefined}
    >
      {agentType === "Auditor" ? <NestedHelper {...props} /> : <Parts {...props} />}
    </RunPanel>
  );
}

/** A helper with its own helpers. It connects to the helper, which reports their runs. */
function NestedHelper(props: Props) {
  const runs = useAgentToolEvents<Part>({ agent: useAgent({ agent: "Gatekeeper", name: props.name, sub: props.at, maxReconnectionDelay: 2000 }) });
  return <Parts {...props} runs={runs} />;
}

const taskOf = (input: unknown) => (typeof input === "string" ? input : typeof input === "object" && input ? Object.values(input).join(", ") : "");

/** Whether text is being streamed, so that the page needs no “Thinking”. */
export const speaks = (message?: UIMessage) => message?.role === "assistant" && message.parts.at(-1)?.type === "text";

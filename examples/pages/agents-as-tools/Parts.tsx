import { getToolPartState } from "@cloudflare/ai-chat/react";
import { type DynamicToolUIPart, type ToolUIPart, type UIMessage, getToolName, isToolUIPart } from "ai";
import { type ReactNode, createContext, use } from "react";
import { Delegation, Delegations, Glass, Plan, Reasoning, RunPanel, Text, ToolLine, Who } from "../design";
import { type Part, type Run, type Runs, useRunsOf } from "./conversation";
import { type Step, hrefOf } from "./place";

/** The helpers that this page supports. A new class needs only a line here. */
export const HELPERS: Record<string, { icon: ReactNode; hasHelpers: boolean }> = {
  Researcher: { icon: <Glass />, hasHelpers: false },
  Planner: { icon: <Plan />, hasHelpers: true },
};

type Scene = { user: string; open: (at: Step[]) => void };
export const Scene = createContext<Scene>({ user: "main", open: () => undefined });

type Call = ToolUIPart | DynamicToolUIPart;
type Props = { parts: Part[]; isGrowing: boolean; at: Step[]; runs?: Runs };

/** The parts of a message: text, reasoning, and tool calls with the helpers that they started. */
export function Parts({ parts, isGrowing, at, runs }: Props) {
  const runsOf = (part: Part) => (isToolUIPart(part) && runs?.getRunsForToolCall(part.toolCallId)) || [];
  return group(parts, (part) => runsOf(part).length > 0).map((some) => {
    const [part] = some;
    const number = parts.indexOf(part);
    const grows = isGrowing && number === parts.length - 1;
    if (part.type === "text") return part.text && <Text key={number} text={part.text} growing={grows} />;
    if (part.type === "reasoning") return part.text && <Reasoning key={number} text={part.text} isGrowing={grows} />;
    if (!isToolUIPart(part)) return null;
    if (runsOf(part).length > 0) return <Delegations key={part.toolCallId}>{some.map((one) => <CallRuns key={(one as Call).toolCallId} call={one as Call} runs={runsOf(one)} at={at} />)}</Delegations>;
    const { toolCallId, input } = part;
    return <ToolLine key={toolCallId} name={getToolName(part)} state={getToolPartState(part)} input={input} output={part.state === "output-available" ? part.output : undefined} error={failure(part)} />;
  });
}

/** Groups of parts: consecutive parts with helpers are one group, each other part is its own. */
function group(parts: Part[], hasHelpers: (part: Part) => boolean): Part[][] {
  const groups: Part[][] = [];
  for (const part of parts) {
    if (hasHelpers(part) && groups.length > 0 && hasHelpers(groups.at(-1)![0])) groups.at(-1)!.push(part);
    else groups.push([part]);
  }
  return groups;
}

const failure = (call: Call) => (call.state === "output-error" ? call.errorText : undefined);

/** The runs of one tool call, in order. If a run has failed, its panel shows the error, not the call. */
function CallRuns({ call, runs, at }: { call: Call; runs: Run[]; at: Step[] }) {
  const error = runs.every(({ status }) => status === "completed") ? failure(call) : undefined;
  return (
    <Delegation tool={getToolName(call)} note={runs.length > 1 ? `${runs.length} helpers in parallel` : undefined} error={error}>
      {runs.map((run) => <Helper key={run.runId} run={run} at={at} />)}
    </Delegation>
  );
}

/** One run, as its caller sees it. */
function Helper({ run, at }: { run: Run; at: Step[] }) {
  const { open } = use(Scene);
  const { runId, agentType, status, summary } = run;
  const inside = [...at, { agent: agentType, name: runId }];
  const parts = withoutAborted(run.parts);
  return (
    <RunPanel
      id={runId}
      kind={agentType}
      name={agentType}
      icon={HELPERS[agentType]?.icon ?? <Who />}
      task={taskOf(run.inputPreview)}
      status={status}
      result={summary}
      error={errorOf(run)}
      href={hrefOf(inside)}
      onOpen={() => open(inside)}
    >
      {HELPERS[agentType]?.hasHelpers ? <NestedHelper parts={parts} isGrowing={status === "running"} at={inside} /> : <Parts parts={parts} isGrowing={status === "running"} at={inside} />}
    </RunPanel>
  );
}

/** A helper with its own helpers. It connects to the helper, which reports their runs. */
function NestedHelper(props: { parts: Part[]; isGrowing: boolean; at: Step[] }) {
  const runs = useRunsOf(use(Scene).user, props.at);
  return <Parts {...props} runs={runs} />;
}

/** The input of a run, as text. */
function taskOf(input: unknown): string {
  if (typeof input === "string") return input;
  if (typeof input !== "object" || input === null) return "";
  const values = Object.values(input);
  return values.every((value) => typeof value === "string") ? values.join(", ") : JSON.stringify(input);
}

function errorOf({ status, error }: Run): string | undefined {
  if (status === "error" || status === "interrupted") return error || "It failed.";
  return undefined;
}

// --8<-- [start:counts]
/** The parts without the steps that a crash aborted: only the last step may have no tool result. */
function withoutAborted(parts: Part[]): Part[] {
  const steps: Part[][] = [[]];
  for (const part of parts) {
    if (part.type === "step-start") steps.push([]);
    steps.at(-1)!.push(part);
  }
  return steps.filter((step, at) => at === steps.length - 1 || step.some((part) => isToolUIPart(part) && isAnswered(part))).flat();
}

const isAnswered = ({ state }: Call) => state === "output-available" || state === "output-error";
// --8<-- [end:counts]

/** Whether text or reasoning is being streamed, so that the page needs no “Thinking”. */
export const speaks = (message?: UIMessage) => {
  const last = message?.role === "assistant" ? message.parts.at(-1) : undefined;
  return last?.type === "text" || last?.type === "reasoning";
};

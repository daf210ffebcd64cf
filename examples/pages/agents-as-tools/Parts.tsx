import { getToolPartState } from "@cloudflare/ai-chat/react";
import { type UIMessage, getToolName, isToolUIPart } from "ai";
import { type ReactNode, createContext, use } from "react";
import { Delegation, Glass, Plan, Reasoning, RunPanel, Text, ToolLine, Who } from "../design";
import { type Part, type Run, type Runs, useRunsOf } from "./conversation";
import { type Step, hrefOf } from "./place";

/** The helpers that this page knows. A new class needs a line here, and nothing else. */
export const HELPERS: Record<string, { icon: ReactNode; hasHelpers: boolean }> = {
  Researcher: { icon: <Glass />, hasHelpers: false },
  Planner: { icon: <Plan />, hasHelpers: true },
};

type Scene = { user: string; open: (at: Step[]) => void };
export const Scene = createContext<Scene>({ user: "main", open: () => undefined });

type Props = { parts: Part[]; isGrowing: boolean; at: Step[]; runs?: Runs };

/** What somebody says: text, thoughts, and calls of tools, each with the helpers that work for it. */
export function Parts({ parts, isGrowing, at, runs }: Props) {
  return parts.map((part, number) => {
    const grows = isGrowing && number === parts.length - 1;
    if (part.type === "text") return part.text && <Text key={number} text={part.text} growing={grows} />;
    if (part.type === "reasoning") return part.text && <Reasoning key={number} text={part.text} isGrowing={grows} />;
    if (!isToolUIPart(part)) return null;
    const given = runs?.getRunsForToolCall(part.toolCallId) ?? [];
    if (given.length > 0) return <Given key={part.toolCallId} tool={getToolName(part)} runs={given} at={at} error={part.state === "output-error" ? part.errorText : undefined} />;
    return (
      <ToolLine
        key={part.toolCallId}
        name={getToolName(part)}
        state={getToolPartState(part)}
        input={part.input}
        output={part.state === "output-available" ? part.output : undefined}
        error={part.state === "output-error" ? part.errorText : undefined}
      />
    );
  });
}

/** The runs of one tool call, in their order. */
function Given({ tool, runs, at, error }: { tool: string; runs: Run[]; at: Step[]; error?: string }) {
  const isTold = runs.some((run) => run.status !== "completed");
  return (
    <>
      <Delegation tool={tool} note={runs.length > 1 ? `${runs.length} helpers at once` : undefined}>
        {runs.map((run) => <Helper key={run.runId} run={run} at={at} />)}
      </Delegation>
      {error && !isTold && <p className="run-error">{error}</p>}
    </>
  );
}

/** One run, as it is seen from whoever gave it. */
function Helper({ run, at }: { run: Run; at: Step[] }) {
  const { open } = use(Scene);
  const { runId, agentType, status, summary } = run;
  const inside = [...at, { agent: agentType, name: runId }];
  const parts = withoutRepeats(run.parts);
  return (
    <RunPanel
      id={runId}
      kind={agentType}
      name={agentType}
      icon={HELPERS[agentType]?.icon ?? <Who />}
      task={taskOf(run.inputPreview)}
      status={status}
      result={summary}
      error={whyNot(run)}
      href={hrefOf(inside)}
      onOpen={() => open(inside)}
    >
      {HELPERS[agentType]?.hasHelpers ? <Below parts={parts} isGrowing={status === "running"} at={inside} /> : <Parts parts={parts} isGrowing={status === "running"} at={inside} />}
    </RunPanel>
  );
}

/** What a helper says that has helpers itself. Of those its own address tells, as long as they are looked at. */
function Below(props: { parts: Part[]; isGrowing: boolean; at: Step[] }) {
  const runs = useRunsOf(use(Scene).user, props.at);
  return <Parts {...props} runs={runs} />;
}

/** What a run was given, in words. */
function taskOf(input: unknown): string {
  if (typeof input === "string") return input;
  if (typeof input !== "object" || input === null) return "";
  const values = Object.values(input);
  return values.every((value) => typeof value === "string") ? values.join(", ") : JSON.stringify(input);
}

function whyNot({ status, error }: Run): string | undefined {
  if (status === "running" || status === "completed") return undefined;
  if (status === "aborted") return "It was stopped. What it had said until then is kept.";
  return error || "It failed.";
}

/** Who was interrupted says again what it had begun to say: only the whole of it is shown. */
function withoutRepeats(parts: Part[]): Part[] {
  return parts.filter((part, at) => {
    if (part.type !== "text" && part.type !== "reasoning") return true;
    return !parts.slice(at + 1).some((later) => later.type === part.type && later.text.startsWith(part.text));
  });
}

export const textOf = (message: UIMessage) => message.parts.map((part) => (part.type === "text" ? part.text : "")).join("");

/** Whether something is to be seen growing, so that nobody needs to be told that it will come. */
export const speaks = (message?: UIMessage) => {
  const last = message?.role === "assistant" ? message.parts.at(-1) : undefined;
  return last?.type === "text" || last?.type === "reasoning";
};

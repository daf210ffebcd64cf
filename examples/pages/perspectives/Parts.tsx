import { getToolPartState } from "@cloudflare/ai-chat/react";
import { getToolName, isToolUIPart } from "ai";
import { Reasoning, Text, ToolLine } from "../design";
import type { Part } from "./panel";

/** The parts of a message: text, reasoning and tool calls. */
export function Parts({ parts, isGrowing }: { parts: Part[]; isGrowing: boolean }) {
  return parts.map((part, number) => {
    const grows = isGrowing && number === parts.length - 1;
    if (part.type === "text") return part.text && <Text key={number} text={part.text} growing={grows} />;
    if (part.type === "reasoning") return part.text && <Reasoning key={number} text={part.text} isGrowing={grows} />;
    if (!isToolUIPart(part)) return null;
    const error = part.state === "output-error" ? part.errorText : undefined;
    return <ToolLine key={number} name={getToolName(part)} state={getToolPartState(part)} input={part.input} output={part.state === "output-available" ? part.output : undefined} error={error} />;
  });
}

/** The parts without the steps that a crash aborted: only the last step may have no tool result. */
export function withoutAborted(parts: Part[]): Part[] {
  const steps: Part[][] = [[]];
  for (const part of parts) {
    if (part.type === "step-start") steps.push([]);
    steps.at(-1)!.push(part);
  }
  return steps.filter((step, at) => at === steps.length - 1 || step.some((part) => isToolUIPart(part) && (part.state === "output-available" || part.state === "output-error"))).flat();
}

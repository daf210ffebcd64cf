// Chunks of a stream, and the parts that they make.

import type { Json } from "./types";

export type Chunk = { type: string; [more: string]: Json };
export type ChunkRow = { number: number; at: number; chunks: Chunk[] };
export type Part = { kind: "text" | "reasoning" | "tool" | "other"; id: string; text: string; name: string; input?: Json; output?: Json; error?: string; isOver: boolean };

const PLAIN = "chunk";

/** What chunks make, without changing what was made before. */
export function grown(parts: Part[], chunks: Chunk[]): Part[] {
  const next = [...parts];
  const change = (id: string, values: (part: Part) => Partial<Part>) => {
    const at = next.map((part) => part.kind !== "other" && part.id === id).lastIndexOf(true);
    if (at >= 0) next[at] = { ...next[at], ...values(next[at]) };
  };
  for (const chunk of chunks) {
    if (typeof chunk === "object" && chunk && "hidden" in chunk && !("type" in chunk)) continue; // the app redacts what it stores
    if (typeof chunk !== "object" || chunk === null || Array.isArray(chunk) || typeof chunk.type !== "string") {
      const last = next.at(-1); // of an agent that is no chat: whatever its code yields
      if (typeof chunk === "string" && last?.kind === "text" && last.id === PLAIN) next[next.length - 1] = { ...last, text: last.text + chunk };
      else if (typeof chunk === "string") next.push({ kind: "text", id: PLAIN, text: chunk, name: PLAIN, isOver: true });
      else next.push({ kind: "other", id: "", text: "", name: PLAIN, output: chunk as Json, isOver: true });
      continue;
    }
    const id = String(chunk.id ?? chunk.toolCallId ?? "");
    const part = (kind: Part["kind"], more: Partial<Part> = {}) => next.push({ kind, id, text: "", name: String(chunk.toolName ?? chunk.type), isOver: false, ...more });
    const [kind, step] = [chunk.type.slice(0, chunk.type.lastIndexOf("-")), chunk.type.slice(chunk.type.lastIndexOf("-") + 1)];
    const isText = kind === "text" || kind === "reasoning";
    if (isText && step === "start") part(kind);
    else if (isText && step === "delta") change(id, ({ text }) => ({ text: text + String(chunk.delta ?? "") }));
    else if (isText && step === "end") change(id, () => ({ isOver: true }));
    else if (chunk.type === "tool-input-start") part("tool");
    else if (chunk.type === "tool-input-delta") change(id, ({ text }) => ({ text: text + String(chunk.inputTextDelta ?? "") }));
    else if (chunk.type === "tool-input-available") {
      if (!next.some((one) => one.kind === "tool" && one.id === id)) part("tool");
      change(id, () => ({ input: chunk.input, name: String(chunk.toolName) }));
    } else if (chunk.type.startsWith("tool-output-")) change(id, () => ({ output: chunk.output, error: chunk.errorText === undefined ? undefined : String(chunk.errorText), isOver: true }));
    else if (!["start", "start-step", "finish-step", "finish", "message-metadata"].includes(chunk.type)) next.push({ kind: "other", id: "", text: "", name: chunk.type, output: chunk as Json, isOver: true });
  }
  return next;
}

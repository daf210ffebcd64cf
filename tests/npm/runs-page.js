// A small page: a chat whose helpers are shown inline, each below the tool call it answers, and can be opened beside it.
// `view` has what a test asks a page for: what it shows, read from its elements, and what its hooks hold.
import { createElement as h, Suspense, useEffect, useRef, useState } from "react";
import { createRoot } from "react-dom/client";
import { useAgent, useAgentToolEvents } from "agents/react";
import { useAgentChat } from "@cloudflare/ai-chat/react";

const BADGES = { running: "Running", completed: "Done", error: "Error", aborted: "Stopped", interrupted: "Interrupted" };
const written = (value) => (typeof value === "string" ? value : JSON.stringify(value));

/** One part of what somebody says; a call of a tool has the runs below it that it gave. */
function Part({ part, runs = [], onOpen }) {
  if (part.type === "text" || part.type === "reasoning") return h("p", { className: "part", "data-kind": part.type }, part.text);
  if (!part.type.startsWith("tool-")) return null;
  const { state, toolCallId, output, errorText } = part;
  return h(
    "div",
    { className: "part", "data-kind": "tool", "data-state": state, "data-call": toolCallId },
    h("p", null, part.type.slice("tool-".length), output !== undefined && `: ${written(output)}`, errorText && `: ${errorText}`),
    runs.map((run) => h(Run, { key: run.runId, run, onOpen })),
  );
}

/** A helper at work: who it is, how it stands, and all it has said so far. */
function Run({ run, onOpen }) {
  const { runId, status, display, agentType, progress, milestones = [], parts, error } = run;
  return h(
    "section",
    { className: "run", "data-run": runId, "data-status": status, "aria-label": display?.name ?? agentType },
    h("h3", null, display?.name ?? agentType, " ", h("span", { className: "badge" }, BADGES[status])),
    h("button", { type: "button", "aria-label": `Open ${runId}`, onClick: () => onOpen(run.subAgent) }, "↗"),
    progress && h("progress", { value: progress.fraction, title: progress.message ?? progress.milestone }),
    milestones.length > 0 && h("ol", null, milestones.map(({ name, sequence }) => h("li", { key: sequence }, name))),
    parts.map((part, at) => h(Part, { key: at, part })),
    error && h("p", { role: "alert" }, error),
  );
}

/** A conversation with the lead, or with a helper at its own address. */
function Conversation({ where, at, view, onOpen, onCleared }) {
  // All hooks of a conversation are in one component: one that waits for the messages while its socket is already open hears nothing.
  const agent = useAgent({ ...where, agent: "Lead", ...(at.length && { sub: at }) });
  const runs = useAgentToolEvents({ agent });
  const chat = useAgentChat({ agent });
  const cleared = () => {
    runs.resetLocalState();
    onCleared();
  };
  const onClear = useRef(cleared);
  onClear.current = cleared;
  useEffect(() => {
    const hear = ({ data }) => {
      const frame = JSON.parse(data);
      if (frame.type === "cf_agent_chat_clear") onClear.current();
      if (frame.type === "agent-tool-event" && frame.replay) view.replayed += 1;
    };
    agent.addEventListener("message", hear);
    return () => agent.removeEventListener("message", hear);
  }, [agent]);
  const isBusy = ["streaming", "submitted"].includes(chat.status) || chat.isStreaming || chat.isToolContinuation;
  const refused = agent.connectionError;
  const level = at.length;
  view.levels[level] = { agent, runs, chat, isBusy };
  for (const run of Object.values(runs.runsById)) view.note(level, run);
  const say = (event) => {
    event.preventDefault();
    const { said } = event.target.elements;
    if (said.value) void chat.sendMessage({ text: said.value });
    said.value = "";
  };
  return h(
    "div",
    { className: "conversation", "data-level": level },
    refused && h("p", { role: "alert", className: "refused" }, `${at.at(-1)?.agent ?? "The lead"} cannot be reached: ${refused.reason || refused.message}`),
    chat.messages.map((message) =>
      h(
        "article",
        { key: message.id, "data-role": message.role },
        message.parts.map((part, number) => h(Part, { key: number, part, onOpen, runs: part.toolCallId && runs.getRunsForToolCall(part.toolCallId) })),
      ),
    ),
    runs.unboundRuns.length > 0 && h("section", { className: "others" }, h("h2", null, "Errands"), runs.unboundRuns.map((run) => h(Run, { key: run.runId, run, onOpen }))),
    h("form", { onSubmit: say }, h("input", { name: "said", "aria-label": "Say", disabled: Boolean(refused) }), h("button", { disabled: Boolean(refused) }, "Send")),
    h("button", { type: "button", onClick: () => void chat.stop() }, "Stop"),
    h("button", { type: "button", onClick: () => (chat.clearHistory(), cleared()) }, "Clear"),
  );
}

/** What was opened: a chat with a helper beside the one it was opened from. Escape, its button or a click beside it close it. */
function Opened({ at, onClose, ...rest }) {
  const panel = useRef(null);
  useEffect(() => panel.current.focus(), []);
  const onKeyDown = (event) => event.key === "Escape" && (event.stopPropagation(), onClose());
  return h(
    "div",
    { className: "backdrop", onClick: (event) => event.target === event.currentTarget && onClose() },
    h(
      "aside",
      { role: "dialog", "aria-label": at.at(-1).agent, "data-opened": at.at(-1).name, tabIndex: -1, ref: panel, onKeyDown },
      h("button", { type: "button", onClick: onClose }, "Close"),
      h(Suspense, { fallback: "…" }, h(Conversation, { at, ...rest })),
    ),
  );
}

function Page({ where, view }) {
  const [opened, setOpened] = useState([]);
  view.open = setOpened;
  const close = (level) => {
    view.levels.length = Math.min(view.levels.length, level);
    setOpened((before) => before.slice(0, level - 1));
  };
  const from = (level) => ({ where, view, onOpen: (step) => setOpened((before) => [...before.slice(0, level), step]), onCleared: () => close(level + 1) });
  return [
    h(Suspense, { key: "lead", fallback: "…" }, h(Conversation, { at: [], ...from(0) })),
    ...opened.map(({ name }, level) => h(Opened, { key: name, at: opened.slice(0, level + 1), onClose: () => close(level + 1), ...from(level + 1) })),
  ];
}

/** What a test does with a page, and reads from it. */
class View {
  levels = [];
  replayed = 0;
  grown = {};

  constructor(element) {
    this.element = element;
  }

  all = (selector, level) => [...this.element.querySelectorAll(level === undefined ? selector : `[data-level="${level}"] ${selector}`)];

  /** The panels of a conversation, in the order they are in, as a person sees them. */
  panels = (level = 0) =>
    this.all("section.run", level).map((panel) => ({
      run: panel.dataset.run,
      call: panel.closest("[data-call]")?.dataset.call ?? null,
      who: panel.getAttribute("aria-label"),
      badge: panel.querySelector(".badge").textContent,
      progress: panel.querySelector("progress")?.title ?? null,
      fraction: panel.querySelector("progress")?.getAttribute("value") ?? null,
      milestones: [...panel.querySelectorAll("li")].map((one) => one.textContent),
      parts: [...panel.querySelectorAll(".part")].map((one) => [one.dataset.kind, one.textContent]),
      error: panel.querySelector("[role=alert]")?.textContent ?? null,
    }));

  /** The tool calls of a conversation itself. */
  calls = (level = 0) => this.all("article > [data-call]", level).map(({ dataset, firstChild }) => [dataset.call, dataset.state, firstChild.textContent]);

  text = (selector, level) => this.all(selector, level).map((one) => one.textContent);

  /** What the hook holds of every run: what must be the same in every tab. Progress passes; and why it was given up a run keeps that ended after all. */
  runs = (level = 0) => {
    const held = structuredClone(this.levels[level]?.runs.runsById ?? {});
    for (const run of Object.values(held)) {
      delete run.progress;
      if (run.status !== "interrupted") for (const key of ["reason", "childStillRunning"]) delete run[key];
      for (const part of run.parts) delete part.toolName;
    }
    return JSON.parse(JSON.stringify(held));
  };

  messages = (level = 0) => JSON.parse(JSON.stringify(this.levels[level].chat.messages, (key, value) => (key === "toolName" ? undefined : value)));

  say = (text, level = 0) => {
    const [form] = this.all("form", level);
    form.elements.said.value = text;
    form.requestSubmit();
  };

  press = (name, level) => this.all("button", level).find((one) => [one.textContent, one.getAttribute("aria-label")].includes(name)).click();

  /** Write down what a run says as it grows. */
  note = (level, { runId, parts }) => {
    const said = parts.map(({ type, text }) => (text === undefined ? "" : `${type}: ${text}\n`)).join("").trimEnd();
    const before = (this.grown[`${level} ${runId}`] ??= []);
    if (before.at(-1) !== said) before.push(said);
  };

  /** What was shown of a run at some moment that is not how it begins now. */
  odd = () => Object.entries(this.grown).flatMap(([run, all]) => all.filter((said) => !all.at(-1).startsWith(said)).map((said) => [run, said, all.at(-1)]));
}

export function mount(element, where) {
  const view = new View(element);
  const root = createRoot(element);
  root.render(h(Page, { where, view }));
  return { view, unmount: () => root.unmount() };
}

const place = document.getElementById("root");
if (place) {
  const name = new URLSearchParams(location.search).get("name");
  window.view = mount(place, { name, host: location.host, maxReconnectionDelay: 500 }).view;
}

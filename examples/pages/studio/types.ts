// The values of the admin API, as docs/reference/admin.md describes them.

export type Address = string;
export type Status = "live" | "busy" | "starting" | "asleep" | "aborted" | "quarantined";
export type Hidden = { hidden: string; length: number };
export type Content<T> = T | Hidden;
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type Unread = { address: Address; error: string };
export type Page<Row> = { rows: Row[]; next: string | null; total?: number; unread?: Unread[]; unanswered?: string[] };

export type Session = { name: string; scopes: string[]; below: Address | null; expires_at: number | null; version: string; roots: string[]; authentication: string | null; tabs: Record<string, AuthorTabInfo[]> };
export type AuthorTabInfo = { title: string; methods: string[]; scope: string | null };
export type AgentRow = {
  address: Address; type: string; name: string; status: Status; calls: number; sockets: number; children: number | null;
  created_at: number | null; asks: number | null; dead: number; last_error: Content<string> | null;
};
export type WatchRow = {
  address: Address; status: Status | "gone"; calls: number; sockets: number; children: number | null; asks: number | null; dead: number; last_error: Content<string> | null;
};
export type QuestionRow = {
  address: Address; id: string; kind: "approval" | "client" | "choice" | "text" | "form"; tool: string | null; arguments: Content<Record<string, Json>> | null;
  prompt: Content<string> | null; options: Content<string[]> | null; schema: Record<string, Json> | null; remote: { type: string; name: string }[] | null; roles: string[] | null; digest: string;
};
export type AgendaRow = {
  address: Address; id: string; kind: "schedule" | "queued" | "fiber"; name: string; arguments: Content<Json> | null; due_at: number | null;
  status: "waiting" | "due" | "running"; queue: string | null; repeats: boolean; failures: number; error: Content<string> | null; created_at: number;
};
export type Letter = { id: string; agent: Address; method: string; arguments: Json; code: string; error: string; attempts: number; occurrences: number; failed_at: string };
export type RunRow = { id: string; agent: string; status: string; started_at: number; ended_at: number | null; bytes: number; pinned: boolean };
export type MessageRow = { position: number; id: string; role: string; created_at: number; turn: string | null; message: Content<UIMessage> };
export type BranchRow = { id: string; after: string | null; parent: string | null; role: string; text: Content<string>; at: number; messages: number; is_active: boolean };
export type UIPart = { type: string; text?: string; state?: string; toolName?: string; toolCallId?: string; input?: Json; output?: Json; errorText?: string; url?: string; mediaType?: string; filename?: string; [more: string]: unknown };
export type UIMessage = { id: string; role: string; parts: UIPart[]; metadata?: Json };
export type SpanStatus = "running" | "waiting" | "completed" | "failed" | "cancelled" | "interrupted" | "skipped";
export type SpanKind = "turn" | "step" | "tool" | "wait" | "run" | "call" | "fiber" | "remote" | "attempt" | "function" | "milestone";
export type Span = {
  number: number; parent: number | null; work: string; kind: SpanKind; name: string; step: number | null;
  attempt: number; incarnation: number; began_at: number; first_at: number | null; ended_at: number | null; status: SpanStatus; facts: Record<string, Json>;
};
/** A turn, call, run or fiber, with the beginning of what it was given. */
export type Work = Span & { input?: Content<string> | null };
export type Incarnation = { number: number; began_at: number; version: string };
export type SpanBatch = { address: Address; spans: Span[]; incarnations: Incarnation[] };
export type ModelRequest = { attempt: number; status: string; url: string; body: string };
export type TableInfo = {
  name: string; rows: number | null; is_own: boolean;
  columns: { name: string; type: string; not_null: boolean; primary_key: number }[];
  indexes: { name: string; unique: boolean; columns: string[] }[];
};
export type Schema = { bytes: number; is_chat: boolean; tables: TableInfo[] };
export type FileRow = { digest: string; name: Content<string> | null; media_type: string; size: number; created_at: number; place: "database" | "folder" | "archive"; used_by: string[] };
export type ConnectionRow = {
  number: number; protocol: "websocket" | "events"; id: Content<string> | null; user: Content<string> | null; since: number; path: Content<string> | null; client: Content<string> | null;
  tags: Content<string>[]; sent: number | null; unread_bytes: number | null; readonly: boolean; watch_only: boolean;
};
export type SqlResult = { columns: string[]; rows: Json[][]; more: boolean };
export type MethodInfo = { name: string; description: string; parameters: Record<string, Json>; returns: Json; streams: boolean };
export type Spent = { requests: number; input_tokens: number; output_tokens: number; nanodollars: number; unpriced: number };
export type SpendingResult = { trees: (Spent & { address: Address })[]; count: number; rows: (Spent & { class: string; model: string })[]; unread: Unread[]; unanswered?: string[] };
export type Worker = {
  worker: string; pool: string; process: number; ready: boolean; unready: string; uptime: number; restarts: number; cpu_seconds: number; memory: number;
  trees: number; agents: number; calls: number; calls_done: number; sockets: number; databases: number;
  waiting: { due: number; waking: number; disk: number; threads: number; clients: number; workers: number };
};
export type Busy = { address: Address; worker: string; agents: number; calls: number; per_second: number | null; queued: number; more: boolean; sockets: number };
export type FailingCall = { address: Address; method: string; worker: string; failures: number; due_at: number };
export type Silent = { worker: string; pool: string; process: number | null; uptime: number; cpu_seconds: number; memory: number };
export type Top = { workers: Worker[]; busiest: Busy[]; slow: { method: string; worker: string; times: number; seconds: number }[]; failing: FailingCall[]; silent?: Silent[]; unanswered?: string[]; called?: string };
export type SlowRow = { address: Address; method: string; seconds: number; at: number; worker: string; stack: Content<string> };
export type LogRecord = { number: number; time: number; level: string; logger: string; message: string; address: Address | null; exception: string | null; worker: string };
export type Effect = { done: number; effect: string };
export type DiffPlace = "only_a" | "only_b" | "changed";
export type DiffChange = { kind: DiffPlace; key: Content<string>; a: Content<Json>; b: Content<Json> };
export type PartDiff = { kind: string; name: string | null; only_a: number; only_b: number; changed: number; changes: DiffChange[]; problem: Content<string> | null };
export type AgentDiff = { path: string; parts: PartDiff[] };
export type TreeDiff = { a: Address; b: Address; both: number; only_a: number; only_b: number; changed: number; agents_only_a: string[]; agents_only_b: string[]; agents_changed: AgentDiff[] };
export type Forked = { address: Address; source: Address; at: string; agents: number; held: { calls: number; fibers: number; turns: number; runs: number; questions: number } };

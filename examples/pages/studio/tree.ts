// The agents that have been loaded: branches, page by page, and the rows that are visible of them.

import { ask } from "./api";
import { asError } from "./hooks";
import type { AdminError } from "./api";
import type { Address, AgentRow, Page, WatchRow } from "./types";

const PAGE = 200;

type Leaf = { after: string | null; nodes: AgentNode[] };

/** An agent that has been loaded, with the pages of its children. */
export class AgentNode {
  isOpen = false;
  isLoading = false;
  error: AdminError | null = null;
  total: number | null = null;
  next: string | null = null;
  pages: Leaf[] = [];

  constructor(public row: AgentRow, readonly parent: AgentNode | null, readonly depth: number) {}

  /** How many children it has, as far as it is known. */
  get children(): number | null {
    return this.row.children ?? this.total;
  }
}

/** What a line of the list shows: an agent, or what its parent has to say after its children. */
export type Line = { node: AgentNode; kind: "agent" | "more" | "error" | "none"; position: number };

export class AgentTree {
  readonly top = new AgentNode({ address: "" } as AgentRow, null, -1);
  unanswered: string[] = [];
  lines: Line[] = [];
  version = 0;
  private known = new Map<Address, AgentNode>();
  private listeners = new Set<() => void>();
  private isDirty = false;

  readonly subscribe = (tell: () => void) => {
    this.listeners.add(tell);
    return () => void this.listeners.delete(tell);
  };
  readonly snapshot = () => this.version;

  get(address: Address): AgentNode | undefined {
    return this.known.get(address);
  }

  /** Load the next page of an agent's children, or of the roots. */
  async load(node: AgentNode): Promise<void> {
    if (node.isLoading || (node.pages.length && node.next === null)) return;
    const after = node.pages.length ? node.next : null;
    await this.take(node, after, (page) => {
      node.pages.push({ after, nodes: page.rows.map((row) => this.adopt(row, node)) });
      node.next = page.next;
    });
  }

  /** Load a page again: rows are updated, and new ones inserted. Later pages keep their rows. */
  async refresh(node: AgentNode, at: number): Promise<void> {
    const leaf = node.pages[at];
    if (!leaf || node.isLoading) return;
    await this.take(node, leaf.after, (page) => {
      const following = node.pages[at + 1];
      if (following) leaf.nodes = this.joined(node, leaf.nodes, page.rows, following.nodes);
      else {
        leaf.nodes = page.rows.map((row) => this.adopt(row, node));
        node.next = page.next;
      }
    });
  }

  /** Ask for a page, and let `keep` put it into the node. */
  private async take(node: AgentNode, after: string | null, keep: (page: Page<AgentRow>) => void): Promise<void> {
    node.isLoading = true;
    try {
      keep(await this.page(node, after));
      node.error = null;
    } catch (error) {
      node.error = asError(error);
    }
    node.isLoading = false;
    this.arrange();
  }

  /** The rows of a page that has another behind it, which begins where this one ended. */
  private joined(node: AgentNode, old: AgentNode[], rows: AgentRow[], following: AgentNode[]): AgentNode[] {
    const later = new Set(following.map(({ row }) => row.address));
    const end = rows.findIndex(({ address }) => later.has(address));
    const fresh = (end < 0 ? rows : rows.slice(0, end)).map((row) => this.adopt(row, node));
    if (end >= 0) return fresh;
    const kept = new Set(fresh); // rows that were inserted have pushed others off the page: they are still there
    return [...fresh, ...old.slice(old.reduce((last, one, index) => (kept.has(one) ? index : last), -1) + 1)];
  }

  private async page(node: AgentNode, after: string | null): Promise<Page<AgentRow>> {
    const page = await ask<Page<AgentRow>>("agents", { address: node.row.address || null, after, limit: PAGE });
    node.total = page.total ?? node.total;
    if (node === this.top) this.unanswered = page.unanswered ?? [];
    return page;
  }

  private adopt(row: AgentRow, parent: AgentNode): AgentNode {
    const old = this.known.get(row.address);
    if (old && old.parent === parent) {
      old.row = { ...row, children: row.children ?? old.row.children, asks: row.asks ?? old.row.asks };
      return old;
    }
    const node = new AgentNode(row, parent, parent.depth + 1);
    this.known.set(row.address, node);
    return node;
  }

  async open(node: AgentNode): Promise<void> {
    node.isOpen = true;
    this.arrange();
    if (!node.pages.length) await this.load(node);
  }

  close(node: AgentNode): void {
    node.isOpen = false;
    this.arrange();
  }

  /** Apply what has changed about agents on the screen. Drawn once per frame, however many changes arrive. */
  apply(rows: WatchRow[]): void {
    for (const row of rows) {
      const node = this.known.get(row.address);
      if (!node) continue;
      const { status } = row;
      if (status === "gone") {
        this.remove(node);
        continue;
      }
      const before = node.children;
      node.row = { ...node.row, ...row, status, asks: row.asks ?? node.row.asks };
      if (row.children !== null) node.total = row.children;
      if (node.isOpen && row.children !== before && row.children !== null && node.next === null) void this.refresh(node, Math.max(0, node.pages.length - 1));
    }
    this.arrange();
  }

  private remove(node: AgentNode): void {
    for (const leaf of node.parent!.pages) leaf.nodes = leaf.nodes.filter((one) => one !== node);
    this.known.delete(node.row.address);
  }

  private arrange(): void {
    if (this.isDirty) return;
    this.isDirty = true;
    requestAnimationFrame(() => {
      this.isDirty = false;
      this.lines = [];
      this.gather(this.top);
      this.version++;
      this.listeners.forEach((tell) => tell());
    });
  }

  private gather(node: AgentNode): void {
    let position = 0;
    for (const { nodes } of node.pages)
      for (const child of nodes) {
        this.lines.push({ node: child, kind: "agent", position: ++position });
        if (child.isOpen) this.gather(child);
      }
    if (node.error) this.lines.push({ node, kind: "error", position: 0 });
    else if (node.next !== null || !node.pages.length) this.lines.push({ node, kind: "more", position: 0 });
    else if (!position && node !== this.top) this.lines.push({ node, kind: "none", position: 0 });
  }
}

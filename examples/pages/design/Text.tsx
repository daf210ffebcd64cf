import { type ReactNode, memo } from "react";

const INLINE = /(\*\*[^*]+\*\*|`[^`]+`|\*[^*\s][^*]*\*|\[[^\]]+\]\(https?:\/\/[^\s)]+\)|https?:\/\/[^\s<>()]*[^\s<>().,;:!?*`])/;
const HEADING = /^#{1,6}(?: +(.*))?$/;
const ITEM = /^\s*[-*•] +/;
const NUMBERED = /^\s*\d+[.)] +/;
const QUOTED = /^\s*> ?/;
const ROW = /^\s*\|/;
const RULE = /^\s*\|[\s:|-]+$/;

/** Model output in Markdown: paragraphs, lists, headings, quotes, tables, links, code, **strong** and *emphasis*. Never HTML. */
export const Text = memo(function Text({ text, growing = false }: { text: string; growing?: boolean }) {
  return <div className={growing ? "text is-growing" : "text"}>{blocks(text)}</div>;
});

function blocks(text: string): ReactNode[] {
  return text.split(/(```[\s\S]*?(?:```|$))/).flatMap((part, at) => (at % 2 ? [code(part, at)] : paragraphs(part, at)));
}

function code(part: string, key: number): ReactNode {
  const inside = part.replace(/^```[^\n]*\n?/, "").replace(/\n?```$/, "");
  return <pre key={`code-${key}`} tabIndex={0}><code>{inside}</code></pre>;
}

/** Consecutive lines of one kind, rendered as one block. */
function paragraphs(part: string, outer: number): ReactNode[] {
  return together(part.split("\n")).map(({ kind, lines }, at) => {
    const key = `${outer}-${at}`;
    if (kind === HEADING) return <h3 key={key}>{inline(lines[0].replace(/^#+ */, ""))}</h3>;
    if (kind === ITEM) return <ul key={key}>{items(lines, ITEM)}</ul>;
    if (kind === NUMBERED) return <ol key={key} start={parseInt(lines[0].trim())}>{items(lines, NUMBERED)}</ol>;
    if (kind === QUOTED) return <blockquote key={key}>{paragraphs(lines.map((line) => line.replace(QUOTED, "")).join("\n"), 0)}</blockquote>;
    if (kind === ROW) return <div key={key} className="table" tabIndex={0} role="group" aria-label="Table">{table(lines)}</div>;
    return <p key={key}>{lines.flatMap((line, at) => (at ? [<br key={at} />, ...inline(line)] : inline(line)))}</p>;
  });
}

function together(lines: string[]): { kind: RegExp | null; lines: string[] }[] {
  const found: { kind: RegExp | null; lines: string[] }[] = [];
  let isNew = true;
  for (const line of lines) {
    const last = found.at(-1);
    const kind = [HEADING, ITEM, NUMBERED, QUOTED, ROW].find((one) => one.test(line)) ?? null;
    if (!line.trim()) isNew = true;
    // Only the items of a list may have empty lines between them.
    else if (last && last.kind === kind && kind !== HEADING && (!isNew || kind === ITEM || kind === NUMBERED)) last.lines.push(line.trimStart());
    else found.push({ kind, lines: [line.trimStart()] });
    if (line.trim()) isNew = false;
  }
  return found;
}

/** The first row is the header if a separator row follows it. */
function table(lines: string[]): ReactNode {
  const hasHead = RULE.test(lines[1] ?? "");
  const all = lines.filter((line) => !RULE.test(line)).map((line) => line.replace(/^\s*\||\|\s*$/g, "").split("|"));
  const cells = (row: string[], Cell: "td" | "th") => row.map((cell, at) => <Cell key={at}>{inline(cell.trim())}</Cell>);
  return (
    <table>
      {hasHead && <thead><tr>{cells(all[0], "th")}</tr></thead>}
      <tbody>{all.slice(hasHead ? 1 : 0).map((row, at) => <tr key={at}>{cells(row, "td")}</tr>)}</tbody>
    </table>
  );
}

const items = (lines: string[], mark: RegExp) => lines.map((line, at) => <li key={at}>{inline(line.replace(mark, ""))}</li>);

function inline(line: string): ReactNode[] {
  return line.split(INLINE).map((part, at) => {
    if (at % 2 === 0) return part;
    if (part.startsWith("**")) return <strong key={at}>{part.slice(2, -2)}</strong>;
    if (part.startsWith("`")) return <code key={at}>{part.slice(1, -1)}</code>;
    if (part.startsWith("*")) return <em key={at}>{part.slice(1, -1)}</em>;
    if (part.startsWith("http")) return <a key={at} href={part} target="_blank" rel="noreferrer">{part}</a>;
    const [words, address] = part.slice(1, -1).split("](");
    return <a key={at} href={address} target="_blank" rel="noreferrer">{words}</a>;
  });
}

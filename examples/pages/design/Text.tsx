import { type ReactNode, memo } from "react";

const INLINE = /(\*\*[^*]+\*\*|`[^`]+`|\*[^*\s][^*]*\*)/;

/** Text as models write it: paragraphs, lists, headings, code, **strong** and *stressed*. Never HTML. */
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

function paragraphs(part: string, outer: number): ReactNode[] {
  return part.split(/\n{2,}/).filter((one) => one.trim()).map((one, at) => {
    const key = `${outer}-${at}`;
    const lines = one.trim().split("\n");
    const heading = lines.length === 1 && /^#{1,6} (.*)/.exec(lines[0]);
    if (heading) return <h3 key={key}>{inline(heading[1])}</h3>;
    const item = /^\s*[-*•] +/, numbered = /^\s*\d+[.)] +/;
    if (lines.every((line) => item.test(line))) return <ul key={key}>{items(lines, item)}</ul>;
    if (lines.every((line) => numbered.test(line))) return <ol key={key}>{items(lines, numbered)}</ol>;
    return <p key={key}>{lines.flatMap((line, at) => (at ? [<br key={at} />, ...inline(line)] : inline(line)))}</p>;
  });
}

const items = (lines: string[], mark: RegExp) => lines.map((line, at) => <li key={at}>{inline(line.replace(mark, ""))}</li>);

function inline(line: string): ReactNode[] {
  return line.split(INLINE).map((part, at) => {
    if (at % 2 === 0) return part;
    if (part.startsWith("**")) return <strong key={at}>{part.slice(2, -2)}</strong>;
    if (part.startsWith("`")) return <code key={at}>{part.slice(1, -1)}</code>;
    return <em key={at}>{part.slice(1, -1)}</em>;
  });
}

// The choice of another piece of work of the same agent, to compare with.

import { useState } from "react";
import { shortTime } from "./format";
import { useAnswer } from "./hooks";
import { Field } from "./parts";
import { go, link } from "./route";
import { nameOfWork } from "./spans";
import type { Page, Work } from "./types";

export function CompareWith({ address, work }: { address: string; work: string }) {
  const [isAsked, setAsked] = useState(false);
  const { data } = useAnswer<Page<Work>>("works", isAsked ? { address, limit: 50 } : null);
  const others = data?.rows.filter((one) => one.work !== work) ?? [];
  return (
    <Field label="Compare with" unseen>{(id) => (
      <select id={id} value="" onFocus={() => setAsked(true)} onPointerDown={() => setAsked(true)} onChange={(event) => go(link(["compare"], { a: address, aw: work, b: address, bw: event.target.value }))}>
        <option value="">Compare with …</option>
        {others.map((one) => <option key={one.number} value={one.work}>{nameOfWork(one, 40)}, {shortTime(one.began_at)}, {one.status}</option>)}
        {data && !others.length && <option disabled>The agent has done nothing else</option>}
      </select>
    )}</Field>
  );
}

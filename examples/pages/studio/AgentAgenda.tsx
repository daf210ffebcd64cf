// What an agent will do, and which of its calls failed for good.

import type { TabProps } from "./Agent";
import { Agenda } from "./Agenda";
import { Letters } from "./Letters";

export default function AgentAgenda({ address, row }: TabProps) {
  return (
    <>
      <Agenda address={address} />
      {row.dead > 0 && <section aria-labelledby="dead"><h2 id="dead">Dead letters</h2><Letters address={address} /></section>}
    </>
  );
}

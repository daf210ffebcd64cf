// What an agent will do, and which of its calls failed for good.

import type { TabProps } from "./Agent";
import { Agenda } from "./Agenda";
import { Letters } from "./Letters";
import { useSession } from "./session";

export default function AgentAgenda({ address, row }: TabProps) {
  const session = useSession();
  return (
    <>
      <Agenda address={address} />
      {row.dead > 0 && session.can("content") && <section aria-labelledby="dead"><h2 id="dead">Dead letters</h2><Letters address={address} /></section>}
    </>
  );
}

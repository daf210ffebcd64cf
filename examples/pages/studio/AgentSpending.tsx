// What an agent and those below it have used of models.

import type { TabProps } from "./Agent";
import { SpendingTables } from "./SpendingTables";

export default function AgentSpending({ address }: TabProps) {
  return <SpendingTables address={address} />;
}

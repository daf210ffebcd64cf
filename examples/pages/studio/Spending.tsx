// Who spends what: the use of models in all trees.

import { Title } from "./parts";
import { SpendingTables } from "./SpendingTables";

export default function Spending() {
  return <><Title title="Spending" /><SpendingTables /></>;
}

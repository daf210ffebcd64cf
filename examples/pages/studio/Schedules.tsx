// What is due in all trees, and which calls failed for good.

import { Agenda } from "./Agenda";
import { Letters } from "./Letters";
import { Tabs, Title } from "./parts";
import { link, useRoute } from "./route";

export default function Schedules() {
  const { query } = useRoute();
  const isDead = query.get("show") === "dead";
  const at = query.get("at") ?? undefined;
  return (
    <>
      <Title title="Schedules">{at && <p className="muted">Only of {at} and agents below it. <a href={link(["schedules"], { show: query.get("show") })}>Show all</a></p>}</Title>
      <Tabs label="Schedules" current={isDead ? "dead" : "due"} tabs={[{ name: "due", label: "Due and waiting", href: link(["schedules"]) }, { name: "dead", label: "Dead letters", href: link(["schedules"], { show: "dead" }) }]} />
      {isDead ? <Letters address={at} /> : <Agenda />}
    </>
  );
}

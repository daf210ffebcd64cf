// Who runs what: the processes, the cluster, slow methods and the log.

import { clock, duration } from "./format";
import { useAnswer } from "./hooks";
import { JsonBox } from "./Json";
import { LogLines } from "./LogLines";
import { AgentName, ErrorNote, Gaps, Loading, Nothing, Shown, Tabs, Time, Title } from "./parts";
import { link, useRoute } from "./route";
import type { Json, SlowRow, Top } from "./types";
import { Workers } from "./Workers";

const TABS = [{ name: "processes", label: "Processes" }, { name: "slow", label: "Slow methods" }, { name: "cluster", label: "Cluster" }, { name: "log", label: "Log" }];

export default function Machines() {
  const { query } = useRoute();
  const show = query.get("show") ?? "processes";
  return (
    <>
      <Title title="Machines" />
      <Tabs label="Machines" current={show} tabs={TABS.map((one) => ({ ...one, href: link(["machines"], { show: one.name }) }))} />
      {show === "slow" ? <Slow /> : show === "cluster" ? <Cluster /> : show === "log" ? <LogLines /> : <Processes />}
    </>
  );
}

function Processes() {
  const { data, error, reload } = useAnswer<Top>("top", { trees: 0 }, 2000);
  if (!data) return error ? <ErrorNote error={error} onRetry={reload} /> : <Loading />;
  return (
    <>
      {error && <ErrorNote error={error} />}
      {data.workers.filter(({ ready }) => !ready).map((one) => <p key={one.worker} className="note is-bad" role="alert">{one.worker} is not ready: {one.unready}</p>)}
      {(data.silent ?? []).map((one) => <p key={one.worker} className="note is-bad" role="alert">{one.worker} does not answer. Its process has used {duration(one.cpu_seconds)} of CPU in {duration(one.uptime)}.</p>)}
      <Workers top={data} />
      <Gaps unanswered={data.unanswered} />
    </>
  );
}

function Slow() {
  const { data, error, reload } = useAnswer<{ rows: SlowRow[]; unanswered: string[] }>("slow", {}, 5000);
  if (!data) return error ? <ErrorNote error={error} onRetry={reload} /> : <Loading />;
  if (!data.rows.length) return <Nothing title="No method was slow">A method is slow if it computes for a long time without an <code>await</code>: all other agents of its process wait until it ends.</Nothing>;
  return (
    <>
      {error && <ErrorNote error={error} />}
      <ul className="cards">
        {data.rows.map((one, at) => (
          <li key={`${one.worker} ${one.at} ${at}`} className="card-row">
            <div className="card-row-head"><span><strong className="mono">{one.method}</strong> kept {one.worker || "its process"} for {duration(one.seconds)}</span><span className="muted"><Time at={one.at} />, at {clock(one.at)}</span></div>
            {one.address && <p><AgentName address={one.address} /></p>}
            <Shown value={one.stack}>{(stack) => <details><summary>Where it was</summary><pre className="stack" tabIndex={0}>{stack}</pre></details>}</Shown>
          </li>
        ))}
      </ul>
      <Gaps unanswered={data.unanswered} />
    </>
  );
}

function Cluster() {
  const { data, error, reload } = useAnswer<{ cluster: Json }>("cluster", {}, 5000);
  if (!data) return error ? <ErrorNote error={error} onRetry={reload} /> : <Loading />;
  if (data.cluster === null) return <Nothing title="This server is not part of a cluster">With <code>sapwood serve --cluster</code>, several machines share the trees.</Nothing>;
  return <>{error && <ErrorNote error={error} />}<JsonBox label="Cluster" value={data.cluster} open={2} /></>;
}

import type { State } from "./lab";

/** The isolation layers, the resource limits and the database. */
export function Side({ state }: { state?: State }) {
  if (!state) return <p className="note">Connecting</p>;
  const { limits, customers } = state;
  return (
    <div className="about">
      <section aria-labelledby="layers-title">
        <h2 id="layers-title">Three layers</h2>
        <ol className="layers">
          <li><strong>No network, no files.</strong> The sandbox has no code that could open either.</li>
          <li><strong>One function.</strong> <code>customers(city)</code>, with checked arguments.</li>
          <li><strong>A sub-agent.</strong> The function calls the lab, and the lab calls the database. The code never holds its stub.</li>
        </ol>
      </section>
      <section aria-labelledby="limits-title">
        <h2 id="limits-title">Limits of a run</h2>
        <dl className="limits">
          <dt>time</dt><dd>{limits.seconds} s</dd>
          <dt>memory</dt><dd>{limits.memory_bytes / 1024 / 1024} MiB</dd>
          <dt>depth</dt><dd>{limits.depth}</dd>
          <dt>calls</dt><dd>{limits.calls}</dd>
          <dt>output</dt><dd>{limits.output_bytes} bytes</dd>
        </dl>
      </section>
      <section aria-labelledby="customers-title">
        <h2 id="customers-title">The database</h2>
        <div className="table" tabIndex={0} role="group" aria-label="Customers">
          <table className="customers">
            <thead><tr><th scope="col">Name</th><th scope="col">City</th><th scope="col">Plan</th><th scope="col">Pays</th></tr></thead>
            <tbody>{customers.map(({ name, city, plan, pays }) => <tr key={name}><td>{name}</td><td>{city}</td><td>{plan}</td><td>{pays} €</td></tr>)}</tbody>
          </table>
        </div>
      </section>
    </div>
  );
}

// Connects the page of a tab to the studio. The page has to load it as its first script: <script src="../../tab.js"></script>
"use strict";

/** The studio, as the page of a tab sees it. */
const studio = (() => {
  const waiting = new Map();
  let port = null;
  let last = 0;
  let open;
  const opened = new Promise((resolve) => (open = resolve));

  addEventListener("message", (event) => {
    if (event.source !== parent || event.data?.sapwood !== "tab" || port) return;
    [port] = event.ports;
    port.onmessage = ({ data }) => waiting.get(data.id)?.(data);
    open(event.data.agent);
  });

  async function send(message, onAnswer) {
    await opened;
    const id = ++last;
    port.postMessage({ ...message, id }); // first: it throws if the message cannot be copied
    waiting.set(id, onAnswer);
  }

  const ask = (message) =>
    new Promise((resolve, reject) => {
      const onAnswer = ({ id, result, error, code }) => {
        waiting.delete(id);
        if (error === undefined) resolve(result);
        else reject(Object.assign(new Error(error), { code }));
      };
      send(message, onAnswer).catch(reject);
    });

  return {
    /** The agent: {address, type, name, methods}. `methods` are those that the token may call. */
    agent: opened,
    /** Return the state of the agent. */
    state: () => ask({ state: true }),
    /** Call a method of the agent, and return its result. */
    call: (method, ...values) => ask({ call: method, arguments: values }),
    /** Call a function with {status, state} now, and after every change. */
    watch: (onChange) => void send({ watch: true }, ({ result, error }) => error === undefined && onChange(result)),
  };
})();

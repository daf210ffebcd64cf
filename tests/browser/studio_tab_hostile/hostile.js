// Tries what the page of a tab must not do, and writes down what came of it.
const attempts = {
  call: () => studio.call("hello"),
  unlisted: () => studio.call("forbidden"),
  private: () => studio.call("set_state", { note: "stolen" }),
  namespace: () => studio.call("questions.list"),
  notAName: () => studio.call({ toString: () => "forbidden" }),
  fetch: () => fetch("/agents/trespasser/fetch"),
  fetchPage: () => fetch("/studio/"),
  fetchAway: () => fetch("http://localhost:1/"),
  beacon: () => { navigator.sendBeacon("/agents/trespasser/beacon", "x"); refuse(); }, // it never says what came of it
  socket: () => new Promise((done, fail) => Object.assign(new WebSocket(`ws://${location.host}/agents/trespasser/socket`), { onopen: done, onerror: fail })),
  events: () => new Promise((done, fail) => Object.assign(new EventSource("/agents/trespasser/events/events"), { onopen: done, onerror: fail })),
  picture: () => new Promise((done, fail) => Object.assign(new Image(), { onload: done, onerror: fail, src: "/studio/page.css" })),
  pictureOfAgent: () => new Promise((done, fail) => Object.assign(new Image(), { onload: done, onerror: fail, src: `/agents/trespasser/picture` })),
  script: () => new Promise((done, fail) => document.head.append(Object.assign(document.createElement("script"), { onload: done, onerror: fail, src: "/studio/page.js" }))),
  worker: () => new Promise((done, fail) => Object.assign(new Worker("hostile.js"), { onmessage: done, onerror: fail })),
  eval: () => eval("1"),
  inline: () => window.inlineRan || refuse(),
  parentDocument: () => parent.document.body,
  topLocation: () => void (top.location = "/studio/?taken"),
  storage: () => sessionStorage.length,
  local: () => localStorage.length,
  cookies: () => document.cookie,
  popup: () => window.open("/studio/") ?? refuse(),
  frames: () => document.querySelector("iframe").contentDocument.body,
};
const refuse = () => { throw new Error("refused"); };

async function run() {
  for (const [name, attempt] of Object.entries(attempts)) {
    let said;
    try {
      const result = await Promise.race([attempt(), new Promise((_, fail) => setTimeout(fail, 3000, new Error("nothing came")))]);
      said = `got ${String(result)}`;
    } catch {
      said = "refused";
    }
    const line = document.createElement("li");
    line.textContent = `${name}: ${said}`;
    document.getElementById("tried").append(line);
  }
  document.getElementById("tried").dataset.done = "yes";
}
run();

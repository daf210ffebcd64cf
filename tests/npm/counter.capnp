using Workerd = import "/workerd/workerd.capnp";

const config :Workerd.Config = (
  services = [
    (name = "main", worker = .worker),
    (name = "disk", disk = (path = "state", writable = true)),
    (name = "internet", network = (allow = ["local"])),
  ],
  sockets = [(name = "http", address = "127.0.0.1:0", http = (), service = "main")],
  # The SDK imports this module; wrangler supplies it, bare workerd does not.
  extensions = [(modules = [(name = "cloudflare-internal:email", internal = true,
    esModule = "export class EmailMessage { constructor(from, to, raw) { Object.assign(this, { from, to, raw }); } }; export default { EmailMessage };")])],
);

const worker :Workerd.Worker = (
  modules = [(name = "counter.js", esModule = embed "dist/counter.js")],
  compatibilityDate = "2026-11-01",
  compatibilityFlags = ["nodejs_compat"],
  durableObjectNamespaces = [(className = "Counter", uniqueKey = "counter", enableSql = true)],
  durableObjectStorage = (localDisk = "disk"),
  bindings = [(name = "Counter", durableObjectNamespace = "Counter")],
);

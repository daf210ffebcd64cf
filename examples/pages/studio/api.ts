// Requests to the admin API: one answer, or a stream of events.

import { getToken, setToken } from "./token";

/** An answer that is an error, with the code of the server, or `unreachable` if there was no answer. */
export class AdminError extends Error {
  constructor(message: string, readonly code: string, readonly status: number) {
    super(message);
  }
}

const url = (endpoint: string) => new URL(`../_sapwood/${endpoint}`, document.baseURI);

async function send(endpoint: string, params: object, signal?: AbortSignal): Promise<Response> {
  const token = getToken();
  let response: Response;
  try {
    response = await fetch(url(endpoint), {
      method: "POST",
      headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
      body: JSON.stringify(params),
      cache: "no-store",
      credentials: "omit",
      signal,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new AdminError("The server does not answer.", "unreachable", 0);
  }
  if (response.ok) return response;
  const said = (await response.json().catch(() => null)) as { error?: string; code?: string } | null;
  const error = new AdminError(said?.error ?? `The server answered ${response.status}.`, said?.code ?? "error", response.status);
  if (response.status === 401 && getToken() === token) setToken(null, error.message);
  throw error;
}

/** Return the result of an endpoint. */
export async function ask<Result>(endpoint: string, params: object = {}, signal?: AbortSignal): Promise<Result> {
  return (await send(endpoint, params, signal)).json() as Promise<Result>;
}

/** Yield the lines of a response as they arrive. */
async function* lines(response: Response): AsyncGenerator<string> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n");
      rest = parts.pop()!;
      yield* parts;
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

export type Event = { name: string; data: any }; // eslint-disable-line @typescript-eslint/no-explicit-any -- as the endpoint has it

/** Yield the events of a stream up to its end. A stream that breaks off is an `AdminError`. */
export async function* events(endpoint: string, params: object, signal: AbortSignal): AsyncGenerator<Event> {
  const response = await send(endpoint, params, signal);
  let name = "";
  try {
    for await (const line of lines(response)) {
      if (line.startsWith("event:")) name = line.slice(6).trim();
      else if (line.startsWith("data:")) {
        const data = JSON.parse(line.slice(5));
        if (name === "error") throw new AdminError(data.error, data.code, 0);
        yield { name, data };
        if (name === "end") return;
      }
    }
  } catch (error) {
    if (error instanceof AdminError || signal.aborted) throw error;
  }
  throw new AdminError("The connection to the server was lost.", "unreachable", 0);
}

/** Yield the results of a method as they arrive. */
export async function* call(address: string, method: string, values: unknown[], signal: AbortSignal): AsyncGenerator<unknown> {
  const response = await send("call", { address, method, arguments: values }, signal);
  for await (const line of lines(response)) {
    if (!line) continue;
    const said = JSON.parse(line);
    if ("error" in said) throw new AdminError(said.error, said.code ?? "error", 0);
    if ("done" in said) return;
    yield said.result;
  }
  throw new AdminError("The connection to the server was lost.", "unreachable", 0);
}

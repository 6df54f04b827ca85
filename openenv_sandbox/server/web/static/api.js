// Talking to the server: requests, and the socket that brings every change.

const watch = new URLSearchParams(location.search).get("watch");

export const watching = watch !== null;

const suffix = watching ? `?watch=${encodeURIComponent(watch)}` : "";

export class Refused extends Error {
  constructor(status, body) {
    super(typeof body.detail === "string" ? body.detail : `the server answered ${status}`);
    this.status = status;
    this.code = body.code || "";
    this.problems = Array.isArray(body.detail) ? body.detail : null;
  }
}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", ...options });
  } catch {
    throw new Refused(0, { detail: "The server does not answer." });
  }
  const text = await response.text();
  let body = null;
  try {
    body = text ? JSON.parse(text) : null;
  } catch {
    body = { detail: text.slice(0, 500) };
  }
  if (!response.ok) throw new Refused(response.status, body || {});
  return body;
}

const post = (path, body = {}) =>
  ask(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });

export const openSession = () => post("web/session");
export const reset = (options) => post("web/reset", options);
export const step = (action) => post("web/step", { action });
export const say = (message) => post("web/step", { message });
export const close = () => post("web/close");
export const history = (number) => ask(`web/history/${number}${suffix}`);
export const exportPath = () => `web/export${suffix}`;
export const framePath = (name) => `web/frame/${encodeURIComponent(name)}${suffix}`;

// Calls `changed` with every update, `linked` with whether the socket is open. Before each connection `before` runs:
// it gives a server that has been restarted the chance to know the visitor again.
export function listen({ changed, linked, before }) {
  let delay = 500;
  const connect = async () => {
    try {
      await before();
    } catch {
      again();
      return;
    }
    const address = new URL(`ws/ui${suffix}${suffix ? "&" : "?"}live=1`, document.baseURI);
    address.protocol = address.protocol.replace("http", "ws");
    const socket = new WebSocket(address);
    socket.addEventListener("open", () => {
      delay = 500;
      linked(true);
    });
    socket.addEventListener("message", (event) => changed(JSON.parse(event.data)));
    socket.addEventListener("close", again);
  };
  const again = () => {
    linked(false);
    setTimeout(connect, delay);
    delay = Math.min(delay * 2, 10000);
  };
  connect();
}

// The connection to the gateway: JSON-RPC over one websocket, made again when it is lost.
// It knows nothing of the page; what it learns it tells through `handlers`.

const FIRST_DELAY = 300;
const GROWTH = 1.6;
const LONGEST_DELAY = 15000;
const HANDSHAKE_LIMIT = 12000;

/** Close codes after which trying the same again is useless until somebody acts. */
const UNAUTHENTICATED = 4401;
const FORBIDDEN = 4403;

export class CallError extends Error {
  constructor(message, code, hint) {
    super(message);
    this.name = "CallError";
    this.code = code ?? null;
    this.hint = hint ?? null;
  }
}

/**
 * `handlers`: `greeting()` returns the parameters of the first request; `onOpen(greeted)`
 * when it was answered; `onLost({delay, code, reason})` when the next try is in `delay` ms;
 * `onRefused({code, reason})` when there is none until `retry()`; `onNotice(method, params)`.
 */
export class Wire {
  constructor(url, handlers) {
    this.url = url;
    this.handlers = handlers;
    this.socket = null;
    this.isOpen = false;
    this.nextId = 1;
    this.calls = new Map();
    this.waiting = [];
    this.failures = 0;
    this.timer = 0;
  }

  start() {
    addEventListener("online", () => this.retry());
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.retry();
    });
    this.#connect();
  }

  /** Try at once, unless there is a connection or a try under way. */
  retry() {
    if (this.socket) return;
    clearTimeout(this.timer);
    this.#connect();
  }

  /** Give up the connection, whatever its state, and make another. */
  drop() {
    this.socket?.close(4000, "made again");
    this.#lost({ code: 0, reason: "made again" });
  }

  /**
   * Send a request. With `again`, one whose answer was lost with the connection is sent
   * again on the next: for reads, and for what carries a command id. Others are rejected.
   */
  call(method, params = {}, { again = true, limit = 0 } = {}) {
    return new Promise((resolve, reject) => {
      const call = { method, params, again, limit, resolve, reject, timer: 0 };
      if (this.isOpen) this.#send(call);
      else if (again) this.waiting.push(call);
      else reject(new CallError("not connected", "not_connected"));
    });
  }

  #connect() {
    let socket;
    try {
      socket = new WebSocket(this.url);
    } catch (error) {
      this.#lost({ code: 0, reason: String(error) });
      return;
    }
    this.socket = socket;
    const limit = setTimeout(() => this.socket === socket && !this.isOpen && this.drop(), HANDSHAKE_LIMIT);
    socket.onopen = () => this.#greet(socket, limit);
    socket.onmessage = (event) => this.socket === socket && this.#receive(event.data);
    socket.onclose = (event) => {
      clearTimeout(limit);
      if (this.socket === socket) this.#lost(event);
    };
  }

  #greet(socket, limit) {
    const resolve = (greeted) => {
      clearTimeout(limit);
      if (this.socket !== socket) return;
      this.isOpen = true;
      this.failures = 0;
      this.handlers.onOpen(greeted);
      for (const call of this.waiting.splice(0)) this.#send(call);
    };
    const reject = (error) => {
      if (this.socket !== socket || error.code === "lost") return;
      this.socket = null;
      socket.close(1000);
      this.handlers.onRefused({ code: UNAUTHENTICATED, reason: error.message });
    };
    const params = this.handlers.greeting();
    this.#send({ method: "_greenroom/authenticate", params, again: false, limit: 0, resolve, reject, timer: 0 });
  }

  #send(call) {
    const id = this.nextId++;
    this.calls.set(id, call);
    if (call.limit) {
      call.timer = setTimeout(() => this.calls.has(id) && this.drop(), call.limit);
    }
    const { method, params } = call;
    // When it is about to close, what is not sent is treated as what was lost.
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ jsonrpc: "2.0", id, method, params }));
  }

  #receive(data) {
    if (typeof data !== "string") return;
    let message;
    try {
      message = JSON.parse(data);
    } catch {
      return;
    }
    if (message === null || typeof message !== "object") return;
    if (message.method !== undefined) {
      // Requests of the agent's protocol are not for a page; it takes no such role.
      if (message.id === undefined) this.handlers.onNotice(message.method, message.params ?? {});
      return;
    }
    const call = this.calls.get(message.id);
    if (!call) return;
    this.calls.delete(message.id);
    clearTimeout(call.timer);
    if (message.error) {
      const { message: text, data: detail } = message.error;
      call.reject(new CallError(String(text), detail?.code, detail?.hint));
    } else {
      call.resolve(message.result);
    }
  }

  #lost({ code, reason }) {
    this.socket = null;
    this.isOpen = false;
    const calls = [...this.calls.values()];
    this.calls.clear();
    for (const call of calls) {
      clearTimeout(call.timer);
      if (call.again) this.waiting.push(call);
      else call.reject(new CallError("the connection was lost before the answer", "lost"));
    }
    if (code === UNAUTHENTICATED || code === FORBIDDEN) {
      this.handlers.onRefused({ code, reason });
      return;
    }
    const delay = Math.min(LONGEST_DELAY, FIRST_DELAY * GROWTH ** this.failures++) * (0.75 + Math.random() / 2);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.retry(), delay);
    this.handlers.onLost({ delay, code, reason });
  }
}

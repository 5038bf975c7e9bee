// Everything the page asks of its node.

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const KEY = "rumormill-key";
export const apiKey = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (key) => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY)),
};

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (apiKey.get()) headers.authorization = `Bearer ${apiKey.get()}`;
  if (options.json !== undefined) headers["content-type"] = "application/json";
  const response = await fetch(path, {
    method: options.json === undefined ? "GET" : "POST",
    body: options.json === undefined ? undefined : JSON.stringify(options.json),
    headers,
    signal: options.signal,
    cache: "no-store",
  });
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new ApiError(response.status, body?.error?.message ?? `the node answered ${response.status}`);
}

// Server-sent events of a response: [event, data] pairs. EventSource can't send an API key.
async function* serverSentEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      pending += value;
      const blocks = pending.split("\n\n");
      pending = blocks.pop();
      for (const block of blocks) {
        let event = "message";
        const data = [];
        for (const line of block.split("\n")) {
          if (line.startsWith("event: ")) event = line.slice(7);
          else if (line.startsWith("data: ")) data.push(line.slice(6));
        }
        yield [event, data.join("\n")];
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

export const session = async () => (await ask("/dashboard/session")).json();

export const promptBlocks = async (messages) => (await ask("/dashboard/blocks", { json: { messages } })).json();

const SILENCE_MS = 4000; // the node says something once a second
const LONGEST_RETRY_MS = 8000;

// Follows the node's events for ever. `on` has: heard(), event(name, data), lost(error).
export async function follow(on, signal) {
  let retryMs = 500;
  while (!signal.aborted) {
    const watchdog = new AbortController();
    const stop = () => watchdog.abort();
    signal.addEventListener("abort", stop);
    let silence = setTimeout(stop, SILENCE_MS);
    try {
      const response = await ask("/dashboard/events", { signal: watchdog.signal });
      for await (const [name, data] of serverSentEvents(response)) {
        clearTimeout(silence);
        silence = setTimeout(stop, SILENCE_MS);
        retryMs = 500;
        on.heard();
        if (data) on.event(name, JSON.parse(data));
      }
      throw new ApiError(0, "the node ended the stream");
    } catch (error) {
      if (signal.aborted) return;
      on.lost(error);
    } finally {
      clearTimeout(silence);
      signal.removeEventListener("abort", stop);
    }
    await new Promise((resolve) => setTimeout(resolve, retryMs));
    retryMs = Math.min(retryMs * 2, LONGEST_RETRY_MS);
  }
}

// One streamed chat answer. `on` has: route({requestId, node, reason}), text(piece), usage(usage).
export async function chat(messages, on, signal) {
  const response = await ask("/v1/chat/completions", {
    json: { messages, stream: true, stream_options: { include_usage: true }, temperature: 0, max_tokens: 512 },
    signal,
  });
  const route = { node: response.headers.get("x-rumormill-node"), reason: response.headers.get("x-rumormill-route") };
  let told = false;
  for await (const [, data] of serverSentEvents(response)) {
    if (data === "[DONE]") return;
    if (!data) continue;
    const part = JSON.parse(data);
    if (part.error) throw new ApiError(0, part.error.message);
    if (!told) {
      told = true;
      on.route({ ...route, requestId: part.id.replace(/^chatcmpl-/, "") });
    }
    const piece = part.choices[0]?.delta?.content;
    if (piece) on.text(piece);
    if (part.usage) on.usage(part.usage);
  }
}

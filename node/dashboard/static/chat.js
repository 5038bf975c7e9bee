// A chat through this node, with where each answer came from and what of the prompt was cached.
import { ApiError, chat, promptBlocks } from "./api.js";
import { cachedOf } from "./mesh.js";
import { milliseconds, plural, shortId } from "./format.js";
import { html, useEffect, useRef, useState } from "./ui.js";

const MAX_SQUARES = 96;
const EXAMPLES = ["Why is the sky blue?", "Name the planets, from the sun outwards."];

export function Chat({ state, dispatch }) {
  const [turns, setTurns] = useState([]);
  const [draft, setDraft] = useState("");
  const running = useRef(null);
  const log = useRef(null);
  const busy = turns.length > 0 && turns.at(-1).pending;
  useEffect(() => {
    log.current?.scrollTo({ top: log.current.scrollHeight });
  }, [turns]);

  const change = (patch) => setTurns((all) => [...all.slice(0, -1), { ...all.at(-1), ...patch }]);

  // So that the reader finds the own text in the caches; where that fails, the chat itself says why.
  function label(messages) {
    if (state.session.role !== "operator") return;
    promptBlocks(messages).then(({ blocks }) => dispatch({ type: "labels", blocks }), () => {});
  }

  async function send(text) {
    const question = text.trim();
    if (!question || busy) return;
    setDraft("");
    const messages = turns.filter((turn) => turn.answer).flatMap(({ question: asked, answer }) => [
      { role: "user", content: asked },
      { role: "assistant", content: answer },
    ]);
    messages.push({ role: "user", content: question });
    const abort = new AbortController();
    running.current = abort;
    setTurns([...turns, { question, answer: "", pending: true }]);
    label(messages);
    const started = performance.now();
    let usage = null;
    let answer = "";
    try {
      await chat(messages, {
        route(route) {
          change({ route, firstTokenMs: performance.now() - started });
          dispatch({ type: "asked", ...route });
        },
        text(piece) {
          answer += piece;
          change({ answer });
        },
        usage: (told) => (usage = told),
      }, abort.signal);
      label([...messages, { role: "assistant", content: answer }]);
      change({ pending: false, usage, totalMs: performance.now() - started });
      dispatch({ type: "answered", usage });
    } catch (error) {
      const stopped = abort.signal.aborted;
      change({ pending: false, stopped, error: stopped ? null : explain(error) });
      dispatch({ type: "answered", usage: null });
    } finally {
      running.current = null;
    }
  }

  return html`<section class="card chat" aria-labelledby="chat-title">
    <header><h2 id="chat-title">Chat</h2>
      ${turns.length > 0 && html`<button type="button" class="quiet" onClick=${() => { running.current?.abort(); setTurns([]); }}>New chat</button>`}</header>
    <div class="scroll log" ref=${log} role="log" aria-label="Conversation" aria-busy=${busy} tabindex="0">
      ${turns.length
        ? turns.map((turn, index) => html`<${Turn} key=${index} turn=${turn} session=${state.session} route=${index === turns.length - 1 ? state.route : null} />`)
        : html`<div class="empty"><p>Ask ${state.session.model.name}. Each answer says which node gave it, and how much of your prompt was cached there.</p>
            <p class="examples">${EXAMPLES.map((text) => html`<button type="button" key=${text} class="quiet" onClick=${() => send(text)}>${text}</button>`)}</p></div>`}
    </div>
    <form onSubmit=${(event) => { event.preventDefault(); send(draft); }}>
      <label class="unseen" for="prompt">Message</label>
      <textarea id="prompt" rows="1" placeholder="Ask something" value=${draft} onInput=${(event) => setDraft(event.target.value)}
        onKeyDown=${(event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(draft); } }}></textarea>
      ${busy
        ? html`<button type="button" onClick=${() => running.current?.abort()}>Stop</button>`
        : html`<button type="submit" class="primary" disabled=${!draft.trim()}>Send</button>`}
    </form>
  </section>`;
}

function explain(error) {
  if (error instanceof ApiError) return error.message;
  return "the node stopped answering; it may be gone";
}

function Turn({ turn, session, route }) {
  const { question, answer, pending, usage, error, stopped } = turn;
  const node = route?.requestId === turn.route?.requestId && route ? route.node : turn.route?.node;
  const tokensPerSecond = usage && usage.completion_tokens > 1 && (usage.completion_tokens - 1) / ((turn.totalMs - turn.firstTokenMs) / 1000);
  return html`<article class="turn">
    <p class="question">${question}</p>
    <p class=${`answer ${pending ? "pending" : ""}`}>${answer}${pending && html`<span class="cursor" aria-hidden="true"></span>`}</p>
    ${error && html`<p class="error" role="alert">${error}</p>`}
    ${stopped && html`<p class="fine">stopped</p>`}
    ${turn.route && html`<footer>
      <p class="hops"><span>you</span> → <b>${shortId(session.node)}</b>${node !== session.node && html` → <b data-answered-by=${node}>${shortId(node)}</b>`}
        <span>${node === session.node ? "answered where it entered" : "forwarded"}</span></p>
      ${usage && html`<${Squares} usage=${usage} size=${session.model.block_size} />
        <p class="fine">${cachedOf(usage)} · first token ${milliseconds(turn.firstTokenMs)} · ${plural(usage.completion_tokens, "token")}${tokensPerSecond ? `, ${tokensPerSecond.toFixed(0)}/s` : ""}</p>`}
      <p class="fine">${turn.route.reason}</p>
    </footer>`}
  </article>`;
}

// The prompt as blocks: the filled part was read from the cache, the hollow one computed.
function Squares({ usage, size }) {
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  const blocks = Math.ceil(usage.prompt_tokens / size);
  const shown = Math.min(blocks, MAX_SQUARES);
  const filled = (cached / size) * (shown / blocks);
  const part = (index) => `${Math.round(100 * Math.max(0, Math.min(1, filled - index)))}%`;
  return html`<p class="squares" role="img" aria-label=${cachedOf(usage)}>${Array.from({ length: shown }, (_, index) => html`<i key=${index} style=${{ "--filled": part(index) }}></i>`)}</p>`;
}

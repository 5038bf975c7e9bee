// The page: asks who the reader is, then shows what that role may see.
import { apiKey, follow, session as askSession } from "./api.js";
import { Caches } from "./caches.js";
import { Chat } from "./chat.js";
import { Decisions } from "./decisions.js";
import { clock } from "./format.js";
import { Mesh } from "./mesh.js";
import { initial, reduce } from "./store.js";
import { html, render, useEffect, useReducer, useState } from "./ui.js";

const THEMES = ["system", "light", "dark"];
const EVENTS = new Set(["mesh", "cache", "decision", "missed"]);

function App() {
  const [state, dispatch] = useReducer(reduce, initial);
  const [locked, setLocked] = useState(null); // why a key is needed
  const [failed, setFailed] = useState(null);

  const enter = async () => {
    try {
      dispatch({ type: "session", session: await askSession() });
      setLocked(null);
      setFailed(null);
    } catch (error) {
      if (error.status === 401) setLocked(apiKey.get() ? "This key is not known here." : "");
      else setFailed(error.message);
    }
  };
  useEffect(() => void enter(), []);
  useEffect(() => {
    if (!failed) return;
    const retry = setTimeout(enter, 2000);
    return () => clearTimeout(retry);
  });
  const operator = state.session?.role === "operator";
  useEffect(() => {
    if (!operator) return;
    const abort = new AbortController();
    follow({
      heard: () => dispatch({ type: "heard" }),
      event: (name, data) => EVENTS.has(name) && dispatch({ type: name, data }),
      lost: (error) => (error.status === 401 || error.status === 403 ? setLocked(error.message) : dispatch({ type: "lost", reason: error.message })),
    }, abort.signal);
    return () => abort.abort();
  }, [operator, locked]);

  if (locked !== null) return html`<${KeyForm} reason=${locked} onKey=${(key) => { apiKey.set(key); enter(); }} />`;
  if (!state.session) return html`<p class="boot">${failed ? `This node does not answer (${failed}). Trying again …` : "Loading the dashboard …"}</p>`;
  return html`
    <a class="skip" href="#chat-title">Skip to the chat</a>
    <${Bar} state=${state} onLeave=${apiKey.get() ? () => { apiKey.set(""); location.reload(); } : null} />
    ${state.lost && html`<p class="banner" role="alert">This node has not answered since ${clock(state.lost.since)}. What you see is as it was then; trying again.</p>`}
    <main class=${operator ? "operator" : "client"}>
      ${operator && html`<${Mesh} state=${state} dispatch=${dispatch} />`}
      <${Chat} state=${state} dispatch=${dispatch} />
      ${operator && html`<${Decisions} state=${state} dispatch=${dispatch} />`}
      ${operator && html`<${Caches} state=${state} dispatch=${dispatch} />`}
      ${!operator && html`<p class="fine note">This key may ask the model. With an operator's key this page shows the mesh too.</p>`}
    </main>`;
}

function Bar({ state, onLeave }) {
  const { session, lost, mesh } = state;
  return html`<header class="top">
    <h1><${Logo} />rumormill</h1>
    <p class="where"><span title="model">${session.model.name}</span>${session.mesh && html`<span class="wide" title="mesh">mesh ${session.mesh.slice(0, 8)}</span>`}${session.policy && html`<span class="wide" title="routing policy">policy ${session.policy}</span>`}</p>
    ${session.role === "operator" && html`<p class=${`live ${lost ? "lost" : ""}`}><i></i>${lost ? "no answer" : mesh ? "live" : "connecting"}</p>`}
    ${onLeave && html`<button type="button" class="quiet" onClick=${onLeave}>Forget key</button>`}
    <${ThemeButton} />
  </header>`;
}

const Logo = () => html`<svg class="logo" viewBox="0 0 24 24" aria-hidden="true"><path d="M12 6 5 17.5M12 6l7 11.5M5 17.5h14" /><circle class="full" cx="12" cy="5.5" r="3" /><circle cx="5" cy="18" r="3" /><circle cx="19" cy="18" r="3" /></svg>`;

function ThemeButton() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme ?? "system");
  const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  const change = () => {
    if (next === "system") {
      delete document.documentElement.dataset.theme;
      localStorage.removeItem("rumormill-theme");
    } else {
      document.documentElement.dataset.theme = next;
      localStorage.setItem("rumormill-theme", next);
    }
    setTheme(next);
  };
  return html`<button type="button" class="quiet theme" onClick=${change} aria-label=${`Theme: ${theme}. Change to ${next}`}>
    <svg viewBox="0 0 24 24" aria-hidden="true"><circle cx="12" cy="12" r="8.5" /><path d="M12 3.5a8.5 8.5 0 0 1 0 17z" /></svg><span>${theme}</span></button>`;
}

function KeyForm({ reason, onKey }) {
  const [key, setKey] = useState("");
  return html`<main class="locked"><form class="card" onSubmit=${(event) => { event.preventDefault(); onKey(key.trim()); }}>
    <h1><${Logo} />rumormill</h1>
    <label for="key">API key</label>
    <input id="key" type="password" autocomplete="current-password" required value=${key} onInput=${(event) => setKey(event.target.value)} />
    ${reason && html`<p class="error" role="alert">${reason}</p>`}
    <button type="submit" class="primary">Open</button>
    <p class="fine">A client's key opens the chat, an operator's the mesh too. It stays in this tab.</p>
  </form></main>`;
}

render(html`<${App} />`, document.getElementById("app"));

// Routing decisions as they are made here, each with its reason and what was expected of every candidate.
import { clock, count, milliseconds, plural, shortId } from "./format.js";
import { html } from "./ui.js";

export function Decisions({ state, dispatch }) {
  const decisions = state.paused ?? state.decisions;
  return html`<section class="card decisions" aria-labelledby="decisions-title">
    <header><h2 id="decisions-title">Routing decisions</h2>
      ${state.missed > 0 && html`<span class="fine">${plural(state.missed, "more was", "more were")} too fast to show</span>`}
      <button type="button" class="quiet" aria-pressed=${Boolean(state.paused)} onClick=${() => dispatch({ type: "pause" })}>${state.paused ? "Resume" : "Pause"}</button>
    </header>
    ${decisions.length
      ? html`<ol class="scroll">${decisions.map((decision) => html`<${Decision} key=${decision.key} ...${{ decision, state, dispatch }} />`)}</ol>`
      : html`<p class="empty">Every request that enters this node is weighed here: who has its beginning cached, who is busy, who is far. None has come since this page was opened.</p>`}
  </section>`;
}

function Decision({ decision, state, dispatch }) {
  const open = state.openDecision === decision.key;
  const here = decision.target === state.session.node;
  const panel = `candidates-${decision.key}`;
  return html`<li class=${open ? "open" : ""}>
    <button type="button" class="decision" aria-expanded=${open} aria-controls=${panel} onClick=${() => dispatch({ type: "open", key: decision.key })}>
      <time>${clock(decision.at)}</time>
      <span class="target">${here ? "here" : html`→ <b>${shortId(decision.target)}</b>`}</span>
      ${state.own.has(decision.id) && html`<em>yours</em>`}
      <span class="size">${plural(decision.tokens, "token")}</span>
      <span class="reason">${decision.reason}${decision.resumed > 0 ? ` (resumed after ${plural(decision.resumed, "token")})` : ""}</span>
    </button>
    ${open && html`<${Candidates} decision=${decision} id=${panel} />`}
  </li>`;
}

function Candidates({ decision, id }) {
  const longest = Math.max(...decision.candidates.filter((each) => !each.excluded).map((each) => each.total_ms), 1);
  return html`<div class="candidates" id=${id}>
    <table>
      <caption class="unseen">Candidates, by the policy ${decision.policy}</caption>
      <thead><tr><th scope="col">node</th><th scope="col">cached</th><th scope="col">expected</th><th scope="col">network, queue, prefill</th></tr></thead>
      <tbody>${decision.candidates.map((each) => html`<tr key=${each.id} class=${each.id === decision.target ? "chosen" : each.excluded ? "excluded" : ""}>
        <th scope="row">${shortId(each.id)}${each.self && html` <span class="fine">here</span>`}</th>
        <td>${count(each.cached)}${each.claimed > each.cached && html`<span class="fine" title="what it claims"> / ${count(each.claimed)}</span>`}</td>
        <td>${each.excluded ? "–" : milliseconds(each.total_ms)}</td>
        <td>${each.excluded ? html`<span class="fine">${each.excluded}</span>` : html`<${Parts} candidate=${each} longest=${longest} />`}</td>
      </tr>`)}</tbody>
    </table>
    ${decision.hidden > 0 && html`<p class="fine">and ${plural(decision.hidden, "slower one")}</p>`}
  </div>`;
}

function Parts({ candidate, longest }) {
  const parts = [["rtt", candidate.rtt_ms], ["queue", candidate.queue_ms], ["prefill", candidate.prefill_ms]];
  const words = parts.map(([name, value]) => `${name} ${milliseconds(value)}`).join(", ");
  return html`<span class="parts" role="img" aria-label=${words} title=${words}>
    ${parts.map(([name, value]) => html`<i key=${name} class=${name} style=${{ width: `${(100 * value) / longest}%` }}></i>`)}
  </span><span class="numbers">${parts.map(([, value]) => tenths(value)).join(" + ")} ms</span>`;
}

const tenths = (value) => (value < 10 ? value.toFixed(1) : Math.round(value));

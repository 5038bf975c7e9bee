// The mesh as a picture: nodes as buttons, links and requests on their way as lines behind them.
import { clock, count, ago, milliseconds, percent, plural, shortId } from "./format.js";
import { SIZES, edge, lane, layout } from "./layout.js";
import { Join } from "./join.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./ui.js";

const LANE_SHIFT = 4;
const RTT_SHIFT = 15; // beside the lanes, on their lower side
const FLIGHT_MS = 900;
const MAX_DROPS = 5;
const LABELLED_NODES = 5; // with more, round trips are told for the selected node only

export function Mesh({ state, dispatch }) {
  const { mesh, session, lost } = state;
  const [box, setBox] = useState(null);
  const stage = useRef(null);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(([entry]) => setBox({ width: entry.contentRect.width, height: entry.contentRect.height }));
    observer.observe(stage.current);
    return () => observer.disconnect();
  }, []);
  return html`<section class="card mesh" aria-labelledby="mesh-title">
    <header><h2 id="mesh-title">Mesh</h2>${mesh && html`<${Totals} mesh=${mesh} />`}</header>
    <div class=${`stage ${lost ? "lost" : ""}`} ref=${stage}>
      ${mesh && box && html`<${Picture} ...${{ state, dispatch, box }} />`}
      ${mesh && mesh.nodes.length === 1 && html`<${Join} session=${session} />`}
    </div>
    <${RouteLine} state=${state} />
  </section>`;
}

function Totals({ mesh }) {
  const up = mesh.nodes.filter(isUp);
  const sum = (read) => up.reduce((total, node) => total + (node.load ? read(node.load) : 0), 0);
  const { prompt_tokens: prompt, cached_tokens: cached } = mesh.served;
  const goneNodes = mesh.nodes.filter((node) => !isUp(node) && node.state !== "candidate").length;
  const facts = [
    [up.length + mesh.hidden === 1 ? "node" : "nodes", up.length + mesh.hidden],
    ...(goneNodes ? [["gone", goneNodes]] : []),
    ["running", sum((load) => load.running)],
    ["waiting", sum((load) => load.waiting)],
    ["blocks cached", count(up.reduce((total, node) => total + node.blocks, 0))],
    ["of prompts read from this cache", percent(cached, prompt)],
  ];
  return html`<dl class="totals">${facts.map(([name, value]) => html`<div key=${name}><dd>${value}</dd><dt>${name}</dt></div>`)}</dl>`;
}

const isUp = (node) => node.self || (node.state !== "dead" && node.state !== "left" && node.state !== "candidate");

function Picture({ state, dispatch, box }) {
  const { mesh, openDecision } = state;
  const order = mesh.nodes.map((node, place) => ({ node, place })).sort((a, b) => (a.node.id < b.node.id ? -1 : 1));
  const { kind, places } = layout(order.length, box.width, box.height);
  const at = new Map(order.map(({ node }, index) => [node.id, places[index]]));
  const decision = openDecision && state.decisions.concat(state.paused ?? []).find((each) => each.key === openDecision);
  return html`
    <svg class="links" width=${box.width} height=${box.height} aria-hidden="true">
      <${Links} state=${state} at=${at} kind=${kind} />
      <${Flights} pulses=${state.pulses} at=${at} />
    </svg>
    <ul class="nodes" aria-label="Nodes">
      ${order.map(({ node }) => html`<li key=${node.id} style=${{ left: `${at.get(node.id).x}px`, top: `${at.get(node.id).y}px` }}>
        <${Node} ...${{ node, kind, state, dispatch, decision }} />
      </li>`)}
    </ul>
    ${state.selectedNode && html`<${Details} state=${state} dispatch=${dispatch} left=${at.get(state.selectedNode).x > box.width / 2} />`}
    ${mesh.hidden > 0 && html`<p class="hidden-nodes">and ${plural(mesh.hidden, "more node")}, not drawn</p>`}`;
}

function Links({ state, at, kind }) {
  const { mesh, route, pulses, selectedNode } = state;
  const id = (place) => mesh.nodes[place].id;
  const size = SIZES[kind];
  const labelled = (a, b) => (mesh.nodes.length <= LABELLED_NODES ? true : [id(a), id(b)].includes(selectedNode));
  const lately = new Set(pulses.map((pulse) => `${pulse.from} ${pulse.to}`));
  return html`
    ${mesh.links.map(([a, b, rtt]) => {
      const [from, to] = [at.get(id(a)), at.get(id(b))];
      const beside = lane(from, to, from.x < to.x ? RTT_SHIFT : -RTT_SHIFT);
      const faint = selectedNode && ![id(a), id(b)].includes(selectedNode);
      return html`<g key=${`${id(a)} ${id(b)}`} class=${`link ${faint ? "faint" : ""}`}>
        <line x1=${from.x} y1=${from.y} x2=${to.x} y2=${to.y} />
        ${rtt !== null && kind !== "dot" && labelled(a, b) && html`<text x=${(beside.x1 + beside.x2) / 2} y=${(beside.y1 + beside.y2) / 2}>${milliseconds(rtt)}</text>`}
      </g>`;
    })}
    ${mesh.flows.map(([a, b, total]) => {
      const [from, to] = [at.get(id(a)), at.get(id(b))];
      const line = lane(edge(from, to, size), edge(to, from, size), LANE_SHIFT);
      const key = `${id(a)} ${id(b)}`;
      const spot = { x: line.x1 + (line.x2 - line.x1) * 0.72, y: line.y1 + (line.y2 - line.y1) * 0.72 };
      const turn = (Math.atan2(line.y2 - line.y1, line.x2 - line.x1) * 180) / Math.PI;
      return html`<g key=${`flow ${key}`} class=${`flow ${lately.has(key) ? "lately" : ""}`}>
        <line ...${line} />
        <path d="M-4 -3.5 L3 0 L-4 3.5" transform=${`translate(${spot.x} ${spot.y}) rotate(${turn})`} />
        ${kind !== "dot" && labelled(a, b) && html`<text x=${spot.x} y=${spot.y - 9}>${count(total)}</text>`}
      </g>`;
    })}
    ${route && route.node !== route.entry && at.has(route.entry) && at.has(route.node) && html`<${OwnRoute} ...${{ route, at, size }} />`}`;
}

function OwnRoute({ route, at, size }) {
  const [from, to] = [at.get(route.entry), at.get(route.node)];
  const line = lane(edge(from, to, size), edge(to, from, size), LANE_SHIFT);
  return html`<line class=${`own-route ${route.done ? "done" : ""}`} data-route=${`${route.entry} ${route.node}`} ...${line} />`;
}

// Requests that were just sent, as drops along their link; motion that says something, and only once.
function Flights({ pulses, at }) {
  const layer = useRef(null);
  const flown = useRef(new Set());
  useEffect(() => {
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    for (const pulse of pulses) {
      if (flown.current.has(pulse.id) || !at.has(pulse.from) || !at.has(pulse.to)) continue;
      for (let drop = 0; drop < Math.min(pulse.count, MAX_DROPS); drop++) fly(layer.current, at.get(pulse.from), at.get(pulse.to), drop * 140);
    }
    flown.current = new Set(pulses.map((pulse) => pulse.id));
  }, [pulses]);
  return html`<g ref=${layer}></g>`;
}

function fly(layer, from, to, delay) {
  const line = lane(from, to, LANE_SHIFT);
  const drop = document.createElementNS("http://www.w3.org/2000/svg", "circle");
  drop.setAttribute("r", "4");
  drop.setAttribute("class", "drop");
  layer.append(drop);
  const frames = [
    { transform: `translate(${line.x1}px, ${line.y1}px)`, opacity: 0 },
    { opacity: 1, offset: 0.15 },
    { opacity: 1, offset: 0.85 },
    { transform: `translate(${line.x2}px, ${line.y2}px)`, opacity: 0 },
  ];
  drop.animate(frames, { duration: FLIGHT_MS, delay, easing: "ease-in-out", fill: "both" }).finished.then(() => drop.remove(), () => drop.remove());
}

function Node({ node, kind, state, dispatch, decision }) {
  const { route, selectedNode, hoveredRun } = state;
  const candidate = decision?.candidates.find((each) => each.id === node.id);
  const holds = hoveredRun?.holders.includes(node.id);
  const classes = ["node", kind, isUp(node) ? node.state : "gone"];
  if (node.self) classes.push("self");
  if (node.id === selectedNode) classes.push("selected");
  if (holds) classes.push("holds");
  if (decision) classes.push(candidate ? (decision.target === node.id ? "chosen" : "weighed") : "not-asked");
  if (route?.node === node.id) classes.push(route.done ? "answered" : "answering");
  return html`<button type="button" class=${classes.join(" ")} data-node=${node.id} aria-pressed=${node.id === selectedNode}
      aria-label=${spoken(node)} title=${kind === "dot" ? spoken(node) : null} onClick=${() => dispatch({ type: "select", node: node.id })}>
    <span class="name"><i class="state"></i><b>${shortId(node.id)}</b>${node.self && html`<em>this node</em>`}</span>
    ${kind !== "dot" && html`<span class="doing">${candidate ? weighed(candidate) : doing(node, kind === "chip")}</span>`}
    ${(kind === "card" || kind === "note") && html`<${Memory} node=${node} />`}
    ${route?.node === node.id && html`<span class="badge">${route.done ? "answered you" : "answers you"}</span>`}
    ${holds && html`<span class="badge">has it</span>`}
  </button>`;
}

const weighed = (candidate) => (candidate.excluded ? candidate.excluded : `≈ ${milliseconds(candidate.total_ms)}`);

export function doing(node, briefly = false) {
  if (!isUp(node)) return gone(node, briefly);
  if (node.state === "suspect") return "does not answer";
  if (!node.load) return "met, load not told yet";
  const { running, waiting } = node.load;
  if (!running && !waiting) return node.note ? node.note.split(":")[0] : "idle";
  if (briefly) return `${running} + ${waiting}`;
  return [running && `${running} running`, waiting && `${waiting} waiting`].filter(Boolean).join(" · ");
}

function gone(node, briefly) {
  const word = { left: "left", candidate: "never met" }[node.state] ?? "gone";
  if (!node.since) return word;
  return briefly ? `${word} ${clock(node.since).slice(0, 5)}` : `${word} since ${clock(node.since)}`;
}

function spoken(node) {
  const parts = [`Node ${shortId(node.id)}`, node.self && "this node", doing(node), node.note, isUp(node) && `${count(node.blocks)} blocks cached`];
  return parts.filter(Boolean).join(", ");
}

function Memory({ node }) {
  const total = node.load?.blocks_total ?? 0;
  const used = Math.min(node.load?.blocks_used ?? 0, total);
  const cached = Math.max(0, Math.min(node.blocks, total) - used);
  const share = (blocks) => ({ width: `${total ? (100 * blocks) / total : 0}%` });
  return html`<span class="memory"><span class="bar"><i class="used" style=${share(used)}></i><i class="cached" style=${share(cached)}></i></span>
    <span>${isUp(node) ? `${count(node.blocks)} cached` : ""}</span></span>`;
}

function Details({ state, dispatch, left }) {
  const { mesh, selectedNode } = state;
  const place = mesh.nodes.findIndex((node) => node.id === selectedNode);
  const node = mesh.nodes[place];
  const total = (index) => mesh.flows.filter((flow) => flow[index] === place).reduce((sum, flow) => sum + flow[2], 0);
  const load = node.load;
  const facts = [
    ["state", isUp(node) ? `${node.state}${node.self ? ", this node" : ""}` : `${gone(node)}${node.since ? `, ${ago(node.since)}` : ""}`],
    ["note", node.note],
    ["model", node.model],
    ["addresses", node.addresses.join(" ")],
    ["round trip", node.rtt_ms !== null && milliseconds(node.rtt_ms)],
    ["queue", load && isUp(node) && `${plural(load.queued_tokens, "token")} to prefill, ${milliseconds(load.queued_ms)}`],
    ["blocks", load && isUp(node) && `${count(node.blocks)} cached, ${count(load.blocks_used)} in use, of ${count(load.blocks_total)}`],
    ["load told", load && isUp(node) && load.age_s > 0 && `${load.age_s} s ago`],
    ["requests", `${count(total(0))} sent to others, ${count(total(1))} got from others`],
  ];
  return html`<aside class=${`details ${left ? "left" : ""}`} aria-label=${`Node ${shortId(node.id)}`}>
    <h3 title=${node.id}>${node.id.slice(0, 16)}…</h3>
    <button type="button" class="quiet close" aria-label="Close" onClick=${() => dispatch({ type: "select", node: node.id })}>×</button>
    <dl>${facts.filter(([, value]) => value).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    ${node.url && !node.self && isUp(node) && html`<a href=${node.url} target="_blank" rel="noreferrer">Its own dashboard ↗</a>`}
  </aside>`;
}

// The reader's last request in words: who answered, and what was cached.
function RouteLine({ state }) {
  const { route } = state;
  const hops = route && ["you", `${shortId(route.entry)} (entry)`, ...(route.node === route.entry ? [] : [shortId(route.node)])];
  return html`<p class="route-line" role="status">${route && html`
    <span>Your last request</span><b>${hops.join(" → ")}</b>
    ${route.node === route.entry && html`<span>answered where it entered</span>`}
    ${route.moved && html`<span>after ${shortId(route.moved)} did not</span>`}
    ${route.usage && html`<span>${cachedOf(route.usage)}</span>`}`}</p>`;
}

export function cachedOf(usage) {
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  return `${count(cached)} of ${plural(usage.prompt_tokens, "prompt token")} cached`;
}

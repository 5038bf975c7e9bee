// What the page knows, and how each piece of news changes it.

const MAX_DECISIONS = 50;
const MAX_LABELS = 4096;
const PULSE_MS = 8000;
const MAX_PULSES = 64;

export const initial = {
  session: null,
  lost: null, // {since, reason} while the node does not answer
  mesh: null,
  caches: new Map(), // node id -> picture
  decisions: [],
  missed: 0,
  paused: null, // decisions as they were when the reader paused
  totals: new Map(), // "from to" -> requests sent over that link since the sender's start
  pulses: [], // requests just sent over a link: {id, from, to, count, at}
  labels: new Map(), // block hash -> {text, next hash} of the reader's own prompts
  own: new Set(), // ids of the reader's own requests
  route: null, // the reader's last request: {requestId, entry, node, moved, done, usage}
  selectedNode: null,
  openDecision: null,
  hoveredRun: null, // {node, first, last, holders}
};

export function reduce(state, action) {
  switch (action.type) {
    case "session":
      return { ...state, session: action.session };
    case "heard":
      return state.lost ? { ...state, lost: null } : state;
    case "lost":
      return { ...state, lost: { since: state.lost?.since ?? Date.now() / 1000, reason: action.reason } };
    case "mesh":
      return withMesh(state, action.data);
    case "cache":
      return { ...state, caches: new Map(state.caches).set(action.data.node, action.data) };
    case "decision":
      return withDecision(state, action.data);
    case "missed":
      return { ...state, missed: state.missed + action.data.decisions };
    case "pause":
      return { ...state, paused: state.paused ? null : state.decisions };
    case "labels":
      return { ...state, labels: withLabels(state.labels, action.blocks) };
    case "asked":
      return withRoute({ ...state, own: new Set(state.own).add(action.requestId) }, action);
    case "answered":
      return state.route ? { ...state, route: { ...state.route, done: true, usage: action.usage } } : state;
    case "select":
      return { ...state, selectedNode: state.selectedNode === action.node ? null : action.node };
    case "open":
      return { ...state, openDecision: state.openDecision === action.key ? null : action.key };
    case "hover":
      return { ...state, hoveredRun: action.run };
    default:
      throw new Error(`no such action: ${action.type}`);
  }
}

function withMesh(state, mesh) {
  const known = new Set(mesh.nodes.map((node) => node.id));
  const caches = new Map([...state.caches].filter(([id]) => known.has(id)));
  const now = Date.now();
  const { totals, pulses } = newPulses(state, mesh, now);
  const lately = [...state.pulses.filter((pulse) => now - pulse.at < PULSE_MS), ...pulses].slice(-MAX_PULSES);
  const selectedNode = known.has(state.selectedNode) ? state.selectedNode : null;
  return { ...state, mesh, caches, selectedNode, totals, pulses: lately };
}

// Flows are totals since each node's start; what they rose by was sent just now. A total seen for the first
// time is news only if it is small: the sender may just have been asked for the first time.
function newPulses(state, mesh, now) {
  const totals = new Map(state.totals);
  const pulses = [];
  for (const [from, to, total] of mesh.flows) {
    const pair = { from: mesh.nodes[from].id, to: mesh.nodes[to].id };
    const key = `${pair.from} ${pair.to}`;
    const before = totals.get(key) ?? (state.mesh && total <= 3 ? 0 : total);
    if (total > before) pulses.push({ ...pair, id: `${key} ${total}`, count: total - before, at: now });
    totals.set(key, total);
  }
  return { totals, pulses };
}

let arrivals = 0;

function withDecision(state, data) {
  const decision = { ...data, key: `${data.id}-${arrivals++}` };
  const decisions = [decision, ...state.decisions].slice(0, MAX_DECISIONS);
  const next = { ...state, decisions };
  const route = state.route;
  if (route?.requestId === decision.id && !route.done && route.node !== decision.target)
    next.route = { ...route, node: decision.target, moved: route.node };
  return next;
}

function withRoute(state, { requestId, node, reason }) {
  const entry = state.session.node;
  // A request that moved before its first token was decided more than once.
  const tries = state.decisions.filter((decision) => decision.id === requestId && decision.target !== node);
  const moved = tries.length ? tries[0].target : null;
  return { ...state, route: { requestId, entry, node, reason, moved, done: false, usage: null } };
}

function withLabels(labels, blocks) {
  const next = new Map(labels);
  blocks.forEach(({ hash, text }, place) => {
    next.delete(hash);
    next.set(hash, { text, next: blocks[place + 1]?.hash });
  });
  for (const hash of next.keys()) {
    if (next.size <= MAX_LABELS) break;
    next.delete(hash);
  }
  return next;
}

// The text of a run of cached blocks, as far as it is of the reader's own prompts; else nothing.
export function ownText(run, labels) {
  let label = labels.get(run.first);
  let text = label?.text ?? "";
  for (let hash = run.first, block = 1; label?.next && hash !== run.last && block < run.blocks; block++) {
    hash = label.next;
    label = labels.get(hash);
    text += label?.text ?? "";
  }
  return text.replace(/\s+/g, " ").trim();
}

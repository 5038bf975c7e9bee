// Each node's prefix tree as an icicle: depth to the right, one row per branch, darker where it is used more.
import { count, plural, shortId } from "./format.js";
import { ownText } from "./store.js";
import { html, useMemo, useRef, useState } from "./ui.js";

const ROW = 15;
const TALL_ROW = 24;
const MAX_ROWS = 9;
const MAX_ROWS_OF_FEW = 16; // where there is room: up to FEW nodes
const FEW = 4;
const MIN_SPAN = 16; // blocks across, so that a lone short prompt doesn't fill the panel
const HOT = 6;

export function Caches({ state, dispatch }) {
  const { mesh, caches, session } = state;
  const first = (node) => (node.id === state.selectedNode ? 0 : 1);
  const nodes = (mesh?.nodes ?? []).filter((node) => node.self || node.connected);
  const trees = nodes.sort((a, b) => first(a) - first(b)).map((node) => ({ node, tree: caches.get(node.id) }));
  const span = Math.max(MIN_SPAN, ...trees.flatMap(({ tree }) => (tree?.runs ?? []).map((run) => run.depth + run.blocks)));
  const empty = trees.every(({ tree }) => !tree?.runs.length);
  return html`<section class="card caches" aria-labelledby="caches-title">
    <header><h2 id="caches-title">Prefix caches</h2>
      <span class="fine">one block is ${session.model.block_size} tokens; darker is used more</span></header>
    ${empty
      ? html`<p class="empty">What a node has computed it keeps, as a tree of prompt prefixes. Prompts that start alike share their first blocks. Ask something, and the tree grows here.</p>`
      : html`<div class="forest"><div class="trees">${trees.map(({ node, tree }) => html`<${Tree} key=${node.id} ...${{ node, tree, span, state, dispatch }} maxRows=${trees.length > FEW ? MAX_ROWS : MAX_ROWS_OF_FEW} />`)}</div>
          <${Hot} trees=${trees} state=${state} dispatch=${dispatch} /></div>`}
  </section>`;
}

// Rows for leaves, parents spanning their children; [{run, index, row, rows}].
function arrange(runs) {
  const children = runs.map(() => []);
  const roots = [];
  runs.forEach((run, index) => (run.parent === null ? roots : children[run.parent]).push(index));
  const placed = [];
  let row = 0;
  const place = (index) => {
    const first = row;
    children[index].forEach(place);
    if (row === first) row += 1;
    placed.push({ run: runs[index], index, row: first, rows: row - first });
  };
  roots.forEach(place);
  return { placed, rows: row, children, roots };
}

function Tree({ node, tree, span, maxRows, state, dispatch }) {
  const runs = tree?.runs ?? [];
  const shape = useMemo(() => arrange(runs), [tree]);
  const [focus, setFocus] = useState(null);
  const surface = useRef(null);
  const rows = Math.min(shape.rows, maxRows);
  const rowHeight = Math.max(ROW, Math.min(TALL_ROW, (ROW * MAX_ROWS) / Math.max(rows, 1)));
  const hottest = Math.max(1, ...runs.map((run) => run.hits));
  const hover = (run) => dispatch({ type: "hover", run });
  const focused = focus !== null && focus < runs.length ? focus : null;
  const move = (index) => {
    if (index === undefined || index === null) return;
    setFocus(index);
    hover(runs[index]);
  };
  const onKeyDown = (event) => {
    const next = neighbour(event.key, focused, runs, shape);
    if (next === null) return;
    event.preventDefault();
    move(next);
  };
  const label = `Prefix tree of node ${shortId(node.id)}: ${plural(tree?.blocks ?? 0, "block")}, ${plural(shape.roots.length, "beginning")} shown`;
  return html`<figure class=${`tree ${state.selectedNode && state.selectedNode !== node.id ? "aside" : ""}`} data-tree=${node.id}>
    <figcaption><b>${shortId(node.id)}</b>${node.self && html`<em>this node</em>`}<span>${plural(tree?.blocks ?? node.blocks, "block")}</span></figcaption>
    ${!tree && html`<p class="fine">has not told its shape yet</p>`}
    ${tree && !runs.length && html`<p class="fine">nothing cached</p>`}
    ${runs.length > 0 && html`<div class="icicle" role="tree" aria-label=${label} tabindex="0" ref=${surface} style=${{ height: `${rows * rowHeight}px` }}
        aria-activedescendant=${focused === null ? undefined : `run-${shortId(node.id)}-${focused}`}
        onKeyDown=${onKeyDown} onFocus=${() => move(focused ?? shape.roots[0])}
        onBlur=${() => { setFocus(null); hover(null); }} onMouseLeave=${() => hover(null)}>
      ${shape.placed.filter(({ row }) => row < rows).map(({ run, index, row, rows: height }) => html`<div key=${index} id=${`run-${shortId(node.id)}-${index}`}
          role="treeitem" aria-level=${run.parent === null ? 1 : 2} aria-label=${spoken(run, state.labels)}
          class=${["run", isSame(run, state.hoveredRun) && "same", index === focused && "focused", run.running && "running"].filter(Boolean).join(" ")}
          style=${{
            left: `${(100 * run.depth) / span}%`,
            width: `${(100 * run.blocks) / span}%`,
            top: `${row * rowHeight}px`,
            height: `${Math.min(height, rows - row) * rowHeight}px`,
            "--heat": `${Math.round(100 * heat(run.hits, hottest))}%`,
          }}
          onMouseEnter=${() => hover(run)}><span>${ownText(run, state.labels)}</span></div>`)}
    </div>`}
    ${shape.rows > rows && html`<p class="fine">and ${plural(shape.rows - rows, "less used branch", "less used branches")}</p>`}
  </figure>`;
}

// Square root: that a prefix is used at all matters more than how often beyond that.
const heat = (hits, hottest) => (hits ? 0.3 + 0.7 * Math.sqrt(hits / hottest) : 0.12);

const isSame = (run, other) => other !== null && (run.first === other.first || run.last === other.last);

function neighbour(key, focused, runs, { children, roots }) {
  if (focused === null) return null;
  const parent = runs[focused].parent;
  const siblings = parent === null ? roots : children[parent];
  const place = siblings.indexOf(focused);
  switch (key) {
    case "ArrowRight":
      return children[focused][0] ?? focused;
    case "ArrowLeft":
      return parent ?? focused;
    case "ArrowDown":
      return siblings[place + 1] ?? focused;
    case "ArrowUp":
      return siblings[place - 1] ?? focused;
    case "Home":
      return roots[0];
    case "Escape":
      return focused;
    default:
      return null;
  }
}

const name = (run, labels) => ownText(run, labels) || `#${run.last.slice(0, 6)}`;

function spoken(run, labels) {
  return `${name(run, labels)}: blocks ${run.depth + 1} to ${run.depth + run.blocks}, used again ${plural(run.hits, "time")}, on ${plural(run.holders.length, "node")}`;
}

// The most used prefixes of all nodes together.
function Hot({ trees, state, dispatch }) {
  const found = new Map();
  for (const { tree } of trees)
    for (const run of tree?.runs ?? []) {
      const known = found.get(run.last);
      if (known) {
        known.hits += run.hits;
        for (const holder of run.holders) known.holders.add(holder);
      } else found.set(run.last, { ...run, holders: new Set(run.holders) });
    }
  const hot = [...found.values()].sort((a, b) => b.hits * b.blocks - a.hits * a.blocks).slice(0, HOT);
  const size = state.session.model.block_size;
  return html`<table class="hot">
    <caption>Hot prefixes</caption>
    <thead><tr><th scope="col">prefix</th><th scope="col">tokens</th><th scope="col">reads</th><th scope="col">nodes</th></tr></thead>
    <tbody>${hot.map((run) => html`<tr key=${run.last} class=${isSame(run, state.hoveredRun) ? "same" : ""}
        onMouseEnter=${() => dispatch({ type: "hover", run: { ...run, holders: [...run.holders] } })} onMouseLeave=${() => dispatch({ type: "hover", run: null })}>
      <th scope="row">${ownText(run, state.labels) ? html`<q>${ownText(run, state.labels)}</q>` : html`<code>#${run.last.slice(0, 6)}</code>`}</th>
      <td>${count(run.depth * size)}–${count((run.depth + run.blocks) * size)}</td>
      <td>${count(run.hits)}</td>
      <td>${run.holders.size}</td>
    </tr>`)}</tbody>
  </table>`;
}

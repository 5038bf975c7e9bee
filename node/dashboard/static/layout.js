// Where nodes stand: around an ellipse, in the order of their ids, so that every node's page shows one picture.

export const SIZES = {
  card: { width: 184, height: 80, gap: 14 },
  note: { width: 146, height: 74, gap: 14 },
  chip: { width: 80, height: 50, gap: 6 },
  dot: { width: 22, height: 22, gap: 4 },
};
const MARGIN = 4;
const HEADROOM = 8; // for the badge on a node at the top
const ALONE_HEIGHT = 0.25; // of the stage: below it stands how to find company

// {kind, places: [{x, y}]} for `count` nodes: the largest kind that fits without overlaps.
export function layout(count, width, height) {
  for (const kind of ["card", "note", "chip"]) {
    const places = ellipse(count, width, height, SIZES[kind]);
    if (fits(places, SIZES[kind])) return { kind, places };
  }
  const outer = Math.ceil((count * 3) / 5);
  const rings = count <= 24 ? [count] : [outer, count - outer];
  const places = rings.flatMap((size, ring) => ellipse(size, width, height, SIZES.dot, ring ? 0.6 : 1));
  return { kind: "dot", places };
}

function ellipse(count, width, height, size, scale = 1) {
  const center = { x: width / 2, y: (height + HEADROOM) / 2 };
  if (count === 1) return [{ ...center, y: Math.max(height * ALONE_HEIGHT, size.height / 2 + MARGIN) }];
  const radius = {
    x: Math.min((width - size.width) / 2 - MARGIN, 420) * scale,
    y: ((height - HEADROOM - size.height) / 2 - MARGIN) * scale,
  };
  const start = count === 2 ? Math.PI : count === 4 ? -0.75 * Math.PI : -Math.PI / 2;
  return Array.from({ length: count }, (_, index) => {
    const angle = start + (2 * Math.PI * index) / count;
    return { x: center.x + radius.x * Math.cos(angle), y: center.y + radius.y * Math.sin(angle) };
  });
}

function fits(places, size) {
  return places.every((a, i) =>
    places.every((b, j) => j <= i || Math.abs(a.x - b.x) >= size.width + size.gap || Math.abs(a.y - b.y) >= size.height + size.gap),
  );
}

// The same line moved sideways, so that both directions of a link have a lane of their own.
export function lane(from, to, shift) {
  const length = Math.hypot(to.x - from.x, to.y - from.y) || 1;
  const dx = (-(to.y - from.y) / length) * shift;
  const dy = ((to.x - from.x) / length) * shift;
  return { x1: from.x + dx, y1: from.y + dy, x2: to.x + dx, y2: to.y + dy };
}

// The point of a line where it leaves a box around its start.
export function edge(from, to, size) {
  const dx = to.x - from.x;
  const dy = to.y - from.y;
  const scale = Math.min(
    dx ? (size.width / 2 + 4) / Math.abs(dx) : Infinity,
    dy ? (size.height / 2 + 4) / Math.abs(dy) : Infinity,
    0.5,
  );
  return { x: from.x + dx * scale, y: from.y + dy * scale };
}

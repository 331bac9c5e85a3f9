// Routes of information: tokens across, places in the model upwards.

import { bent } from "../drawing/paths";
import { labelText } from "../labels";
import type { TensorEntry } from "../tensor";
import { spokenLabel } from "../words";

export interface RouteNode {
  /** "L0 mlp | 3: Peter": a place and the token at it. */
  label: string;
  place: string;
  importance: number;
}

export interface RouteEdge {
  above: string;
  below: string;
  /** A head, an MLP, or the stream. */
  via: string;
  share: number;
  whole_share: number;
}

export interface Routes {
  nodes: readonly RouteNode[];
  edges: readonly RouteEdge[];
  threshold: number;
  inputs: TensorEntry;
}

export const nodeText = (label: string): string => {
  const at = label.indexOf(" | ");
  return at < 0 ? spokenLabel(label) : `${spokenLabel(label.slice(0, at))} ${labelText("key", label.slice(at + 3))}`;
};

/** Where routes start. */
export function topsOf(routes: Routes): string[] {
  const tops = routes.nodes.filter((n) => !routes.edges.some((e) => e.below === n.label)).map((n) => n.label);
  return tops.length ? tops : [routes.nodes[0].label];
}

/** What can still be reached from the top by edges above a threshold. */
function reached(routes: Routes, threshold: number): { found: Set<string>; edges: RouteEdge[] } {
  const below = new Set(routes.edges.map((e) => e.below));
  const open = topsOf(routes);
  const found = new Set(open);
  const edges: RouteEdge[] = [];
  const leaving = new Map<string, RouteEdge[]>();
  for (const edge of routes.edges) leaving.set(edge.above, [...(leaving.get(edge.above) ?? []), edge]);
  while (open.length) {
    for (const edge of leaving.get(open.pop()!) ?? []) {
      if (edge.whole_share < threshold - 1e-9) continue;
      edges.push(edge);
      if (!found.has(edge.below) && below.has(edge.below)) open.push(edge.below);
      found.add(edge.below);
    }
  }
  return { found, edges };
}

const MOST_TOKENS = 40,
  MOST_NAMED = 10; // columns for tokens without a route; edges that bear the name of their head

const depthOf = (place: string) => {
  const layer = /(\d+)/.exec(place);
  return layer ? 2 * Number(layer[1]) + 1 + (/ /.test(place) ? 1 : 0) : 0;
};

/** Where the nodes and edges stand that a threshold leaves. */
export function layoutOf(routes: Routes, threshold: number) {
  const { found, edges } = reached(routes, threshold);
  const nodes = routes.nodes.filter((n) => found.has(n.label));
  const byLabel = new Map(routes.nodes.map((n) => [n.label, n]));
  const order = (routes.inputs.coords.key ?? []).map(String);
  const column = (node: RouteNode) => node.label.slice(node.label.indexOf("| ") + 2);
  const rank = (name: string) => {
    const i = order.indexOf(name);
    return i < 0 ? order.length : i;
  };
  // as far as there is room, tokens without a route keep their places
  const columns =
    order.length && order.length <= MOST_TOKENS
      ? order
      : [...new Set(nodes.map(column))].sort((a, b) => rank(a) - rank(b));
  const places = [...new Set(nodes.map((n) => n.place))].sort((a, b) => depthOf(a) - depthOf(b));
  const gap = Math.max(30, Math.min(80, 820 / columns.length)),
    rowGap = places.length > 14 ? 38 : 50,
    left = 76,
    bottom = 104;
  const width = Math.max(360, left + gap * columns.length + 20),
    height = rowGap * places.length + bottom;
  const x = (node: RouteNode) => left + gap * (columns.indexOf(column(node)) + 0.5);
  const y = (node: RouteNode) => height - bottom - rowGap * (places.indexOf(node.place) + 0.5);

  const joined = edges
    .filter((e) => byLabel.has(e.below))
    .map((edge) => {
      const [above, below] = [byLabel.get(edge.above)!, byLabel.get(edge.below)!];
      const kind = edge.via === "stream" ? "stream" : / /.test(edge.via) ? "mlp" : "head";
      const side = { stream: 0, mlp: 5, head: -3 }[kind] * (x(above) === x(below) ? 1 : 0);
      const path = bent({ x: x(below) + side, y: y(below) }, { x: x(above) + side, y: y(above) }, 0.5);
      return {
        edge,
        kind,
        path,
        carried: above.importance * edge.share,
        x: (x(above) + x(below)) / 2,
        y: (y(above) + y(below)) / 2 + 4,
      };
    });
  // names stand on the middle of the strongest edges, where none stands already
  const named: typeof joined = [];
  for (const one of joined.filter((j) => j.kind !== "stream").sort((a, b) => b.carried - a.carried)) {
    if (named.length < MOST_NAMED && named.every((n) => n.y !== one.y || Math.abs(n.x - one.x) > 36)) named.push(one);
  }
  return {
    width,
    height,
    left,
    named,
    nEdges: edges.length,
    lines: [...joined].sort((a, b) => a.edge.share - b.edge.share),
    dots: nodes.map((node) => ({
      node,
      x: x(node),
      y: y(node),
      radius: (2.5 + 5 * Math.sqrt(Math.min(1, node.importance))).toFixed(1),
    })),
    rows: places.map((place, i) => ({ place, y: height - bottom - rowGap * (i + 0.5) })),
    tokens: columns.map((name, i) => ({ name, x: left + gap * (i + 0.5) + 4, y: height - bottom + 8 })),
  };
}

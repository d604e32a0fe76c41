/** Where the boxes and arrows of a graph go; dagre's layers, from top to bottom. */

import dagre from "@dagrejs/dagre";
import type { Graph, GraphEdge, GraphNode } from "./model";

export interface Box {
  node: GraphNode;
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface Arrow {
  edge: GraphEdge;
  path: string;
  /** Where its label's middle is. */
  x: number;
  y: number;
}

export interface Layout {
  width: number;
  height: number;
  boxes: Box[];
  arrows: Arrow[];
}

export const BOX_HEIGHT = 48;
const CHARACTER = 7.6;
const LEAST_WIDTH = 96;
/** Of what is written into a box. */
export const LONGEST_LABEL = 28;

/** A text as short as a box has room for. */
export function short(text: string): string {
  const letters = [...text.replace(/\s+/g, " ").trim()];
  return letters.length > LONGEST_LABEL ? `${letters.slice(0, LONGEST_LABEL - 1).join("")}…` : letters.join("");
}

export function laidOut(graph: Graph): Layout {
  const drawing = new dagre.graphlib.Graph<Record<string, string | number>, { width: number; height: number }, EdgeSize>({
    multigraph: true,
  });
  drawing.setGraph({ rankdir: "TB", nodesep: 28, ranksep: 44, marginx: 12, marginy: 12 });
  const known = new Map(graph.nodes.map((node) => [node.id, node]));
  for (const node of graph.nodes) {
    const letters = Math.max(short(node.label).length, short(node.detail).length * 0.9);
    drawing.setNode(node.id, { width: Math.max(LEAST_WIDTH, letters * CHARACTER + 56), height: BOX_HEIGHT });
  }
  const edges = graph.edges.filter((edge) => known.has(edge.source) && known.has(edge.target));
  for (const [at, edge] of edges.entries()) {
    const label = short(edge.label);
    drawing.setEdge(
      edge.source,
      edge.target,
      { width: label ? label.length * 6.5 : 0, height: label ? 16 : 0, labelpos: "c" },
      String(at),
    );
  }
  dagre.layout(drawing);
  const size = drawing.graph() as { width?: number; height?: number };
  const boxes = graph.nodes.map((node) => {
    const { x, y, width, height } = drawing.node(node.id) as { x: number; y: number; width: number; height: number };
    return { node, x: x - width / 2, y: y - height / 2, width, height };
  });
  const arrows = edges.map((edge, at) => {
    const line = drawing.edge(edge.source, edge.target, String(at)) as EdgeSize & {
      points: { x: number; y: number }[];
      x?: number;
      y?: number;
    };
    const middle = line.points[Math.floor(line.points.length / 2)];
    return { edge, path: curve(line.points), x: line.x ?? middle?.x ?? 0, y: line.y ?? middle?.y ?? 0 };
  });
  return { width: size.width ?? 0, height: size.height ?? 0, boxes, arrows };
}

interface EdgeSize {
  width: number;
  height: number;
  labelpos: "c";
}

/** A smooth line through points: straight to the middles between them, bent at the points themselves. */
function curve(points: readonly { x: number; y: number }[]): string {
  const [first, ...rest] = points;
  const last = rest.pop();
  if (!first || !last) return "";
  let path = `M${at(first)}`;
  for (const [index, point] of rest.entries()) {
    const next = rest[index + 1];
    const end = next ? { x: (point.x + next.x) / 2, y: (point.y + next.y) / 2 } : last;
    path += ` Q${at(point)} ${at(end)}`;
  }
  return rest.length ? path : `${path} L${at(last)}`;
}

function at(point: { x: number; y: number }): string {
  return `${point.x.toFixed(1)},${point.y.toFixed(1)}`;
}

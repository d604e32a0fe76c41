/** A graph drawn: boxes that can be chosen with keyboard and mouse, and the same as a list. */

import { useMemo } from "preact/hooks";
import { visible } from "../visible";
import { words } from "../types";
import { StatusBadge } from "../ui";
import { BOX_HEIGHT, laidOut, short } from "./layout";
import type { Graph, GraphNode } from "./model";

const TONES: Readonly<Record<string, "good" | "bad" | "warn" | "live" | "calm">> = {
  completed: "good",
  failed: "bad",
  timeout: "bad",
  rejected: "bad",
  lost: "bad",
  cancelled: "bad",
  running: "live",
  waiting: "warn",
  paused: "warn",
  no_winner: "bad",
};
const SIGNS: Readonly<Record<string, string>> = {
  completed: "✓",
  failed: "✕",
  running: "●",
  waiting: "!",
  paused: "‖",
  skipped: "–",
  pending: "○",
};
const MOST_DRAWN = 300;

interface Props {
  graph: Graph;
  chosen?: string;
  onChoose?: (id: string) => void;
}

export function GraphPicture({ graph, chosen = "", onChoose }: Props) {
  // Where things are depends on what there is, not on where it stands.
  const shape = JSON.stringify([graph.nodes.map((node) => [node.id, node.label, node.detail]), graph.edges]);
  const layout = useMemo(() => (graph.nodes.length <= MOST_DRAWN ? laidOut(graph) : null), [shape]);
  const nodes = new Map(graph.nodes.map((node) => [node.id, node]));
  return (
    <figure class="graph">
      {layout ? (
        <div class="graph-box" role="region" aria-label={`${visible(graph.title)}: picture`} tabIndex={0}>
          <svg
            viewBox={`0 0 ${layout.width} ${layout.height}`}
            width={layout.width}
            height={layout.height}
            role="group"
            aria-label={`${visible(graph.title)}: ${graph.nodes.length} nodes`}
          >
            <defs>
              <marker id="arrow-end" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="7" markerHeight="7" orient="auto">
                <path d="M0 0 L8 4 L0 8 z" class="graph-arrow-end" />
              </marker>
            </defs>
            {layout.arrows.map((arrow, at) => (
              <g key={at} aria-hidden="true">
                <path d={arrow.path} class="graph-arrow" marker-end="url(#arrow-end)" />
                {arrow.edge.label && (
                  <text x={arrow.x} y={arrow.y + 4} text-anchor="middle" class="graph-arrow-label">
                    {visible(short(arrow.edge.label))}
                  </text>
                )}
              </g>
            ))}
            {layout.boxes.map((box) => {
              const node = nodes.get(box.node.id) ?? box.node;
              return (
                <Box
                  key={node.id}
                  node={node}
                  x={box.x}
                  y={box.y}
                  width={box.width}
                  chosen={node.id === chosen}
                  {...(onChoose && { onChoose })}
                />
              );
            })}
          </svg>
        </div>
      ) : (
        <p class="muted">{graph.nodes.length} nodes are too many to draw; they are listed below.</p>
      )}
      <figcaption>
        <Legend graph={graph} />
        <details class="fold">
          <summary>As a list</summary>
          <GraphList graph={graph} {...(onChoose && { onChoose })} />
        </details>
      </figcaption>
    </figure>
  );
}

interface BoxProps {
  node: GraphNode;
  x: number;
  y: number;
  width: number;
  chosen: boolean;
  onChoose?: (id: string) => void;
}

function Box({ node, x, y, width, chosen, onChoose }: BoxProps) {
  const tone = TONES[node.status] ?? (node.status ? "calm" : "plain");
  const choose = onChoose && (() => onChoose(node.id));
  // As it is written there, so that it can be said to those who act on what is said.
  const said = [short(node.label), short(node.detail), words(node.status)].filter(Boolean).join(" ");
  return (
    <g
      class={`graph-node graph-${tone}${chosen ? " graph-chosen" : ""}${node.breakpoint ? " graph-breakpoint" : ""}`}
      transform={`translate(${x} ${y})`}
      data-node={node.id}
      data-status={node.status}
      {...(choose
        ? {
            role: "button",
            tabindex: 0,
            "aria-pressed": chosen,
            onClick: choose,
            onKeyDown: (event: KeyboardEvent) => {
              if (event.key !== "Enter" && event.key !== " ") return;
              event.preventDefault();
              choose();
            },
          }
        : { role: "img" })}
      aria-label={visible(said)}
    >
      <rect width={width} height={BOX_HEIGHT} rx={7} />
      <text x={width / 2} y={20} text-anchor="middle" class="graph-label">
        {`${visible(short(node.label))} `}
      </text>
      <text x={width / 2} y={37} text-anchor="middle" class="graph-detail">
        {`${visible(short(node.detail))} `}
      </text>
      {node.status && (
        <text x={8} y={20} class="graph-sign" aria-hidden="true">
          {SIGNS[node.status] ?? "·"}
        </text>
      )}
    </g>
  );
}

function Legend({ graph }: { graph: Graph }) {
  const statuses = [...new Set(graph.nodes.map((node) => node.status).filter(Boolean))];
  const breakpoints = graph.nodes.some((node) => node.breakpoint);
  if (!statuses.length && !breakpoints) return null;
  return (
    <p class="row legend-row">
      {statuses.map((status) => (
        <StatusBadge key={status} status={status} tone={TONES[status] ?? "calm"} />
      ))}
      {breakpoints && <span class="tag">dashed: breakpoint</span>}
    </p>
  );
}

function GraphList({ graph, onChoose }: { graph: Graph; onChoose?: (id: string) => void }) {
  const after = new Map<string, string[]>();
  for (const edge of graph.edges)
    after.set(edge.target, [...(after.get(edge.target) ?? []), edge.label ? `${edge.source} (${edge.label})` : edge.source]);
  return (
    <ol class="graph-list">
      {graph.nodes.map((node) => (
        <li key={node.id}>
          {onChoose ? (
            <button type="button" class="link-button" onClick={() => onChoose(node.id)}>
              {visible(node.label)}
            </button>
          ) : (
            <strong>{visible(node.label)}</strong>
          )}{" "}
          <span class="muted">{visible(node.detail)}</span> {node.status && <span>– {words(node.status)}</span>}
          {after.has(node.id) && <span class="muted"> after {(after.get(node.id) ?? []).map(visible).join(", ")}</span>}
        </li>
      ))}
    </ol>
  );
}

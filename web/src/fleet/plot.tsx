import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { dark } from "../theme";
import { clock, moment } from "../ui";

export interface Line {
  readonly name: string;
  readonly values: readonly (number | null)[];
  /** 1 to 4: one of the colours of series. */
  readonly colour: 1 | 2 | 3 | 4;
  readonly dashed?: boolean;
}

interface PlotProps {
  title: string;
  /** Seconds since 1970, rising. */
  times: readonly number[];
  lines: readonly Line[];
  format: (value: number) => string;
  /** Only whole numbers stand on the axis. */
  whole?: boolean;
  /** The most that the axis can show; absent: as far as the values go. */
  most?: number;
}

const HEIGHT = 170;
const DAY_SECONDS = 86_400;
const WHOLE_STEPS = Array.from({ length: 13 }, (_, power) => [1, 2, 5].map((step) => step * 10 ** power)).flat();

function options({ lines, format, whole, most }: PlotProps, width: number): uPlot.Options {
  const style = getComputedStyle(document.documentElement);
  const colour = (name: string): string => style.getPropertyValue(name).trim();
  const axis: uPlot.Axis = {
    stroke: colour("--muted"),
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { stroke: colour("--line"), width: 1 },
    font: "11px sans-serif",
  };
  return {
    width,
    height: HEIGHT,
    pxAlign: true,
    cursor: { drag: { x: false, y: false }, points: { size: 6 } },
    legend: { live: true },
    scales: {
      // A look alone would stretch over years.
      x: {
        range: (plot, low, high) => {
          const first = plot.data[0][0] ?? low;
          const last = plot.data[0].at(-1) ?? high;
          return [Math.min(first, last - 60), last];
        },
      },
      y: { range: (_, low, high) => [Math.min(0, low ?? 0), most ?? (high && high > 0 ? high * 1.1 : 1)] },
    },
    // Where nothing is pointed at, the legend has the last values.
    hooks: { setCursor: [resting], setData: [resting], ready: [resting] },
    axes: [
      { ...axis, values: (plot, splits) => splits.map((at) => tick(at, (plot.scales.x?.max ?? 0) - (plot.scales.x?.min ?? 0))) },
      { ...axis, size: 58, values: (_, splits) => splits.map(format), ...(whole && { incrs: WHOLE_STEPS }) },
    ],
    series: [
      { label: "Time", value: (_, at) => (at ? clock(at * 1000) : "–") },
      ...lines.map((line) => ({
        label: line.name,
        stroke: colour(`--series-${line.colour}`),
        width: 1.5,
        points: { show: line.values.filter((value) => value !== null).length < 3 },
        value: (_: uPlot, value: number | null) => (value === null || value === undefined ? "–" : format(value)),
        ...(line.dashed && { dash: [5, 4] }),
      })),
    ],
  };
}

function resting(plot: uPlot): void {
  const last = (plot.data[0]?.length ?? 0) - 1;
  if (last >= 0 && (plot.cursor.idx === null || plot.cursor.idx === undefined)) plot.setLegend({ idx: last }, false);
}

/** A time on an axis of so many seconds. */
function tick(at: number, span: number): string {
  if (span > 2 * DAY_SECONDS) return new Date(at * 1000).toLocaleDateString(undefined, { day: "numeric", month: "short" });
  return span < 600 ? clock(at * 1000) : clock(at * 1000).slice(0, 5);
}

function empty(lines: readonly Line[]): boolean {
  return lines.every((line) => line.values.every((value) => value === null));
}

/** What the plot shows, in words. */
function told({ lines, format, times }: PlotProps): string {
  if (!times.length || empty(lines)) return "Nothing was measured yet.";
  return `${lines
    .map((line) => {
      const there = line.values.filter((value): value is number => value !== null);
      if (!there.length) return `${line.name}: nothing`;
      const top = there.reduce((most, value) => Math.max(most, value), Number.NEGATIVE_INFINITY);
      return `${line.name}: ${format(there.at(-1) ?? 0)} last, ${format(top)} at most`;
    })
    .join("; ")}.`;
}

/** Lines over time; the same in words and, opened, in numbers. */
export function Plot(props: PlotProps) {
  const box = useRef<HTMLDivElement>(null);
  const shown = useRef<uPlot>(undefined);
  const { title, times, lines, format } = props;
  const shape = `${dark.value} ${lines.map((line) => line.name).join(",")}`;
  const data = [times, ...lines.map((line) => line.values)] as unknown as uPlot.AlignedData;

  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const plot = new uPlot(options(props, Math.max(200, element.clientWidth)), data, element);
    shown.current = plot;
    const watching = new ResizeObserver(() => plot.setSize({ width: Math.max(200, element.clientWidth), height: HEIGHT }));
    watching.observe(element);
    return () => {
      watching.disconnect();
      plot.destroy();
      shown.current = undefined;
    };
  }, [shape]);
  useEffect(() => shown.current?.setData(data), [times, lines]);

  const rows = times.map((at, index) => ({ at, index })).slice(-24).reverse();
  return (
    <figure class="card plot">
      <figcaption>
        <h3>{title}</h3>
        <p class="small muted">{told(props)}</p>
      </figcaption>
      <div ref={box} class="plot-canvas" aria-hidden="true" hidden={empty(lines)} />
      {times.length > 0 && !empty(lines) && (
        <details>
          <summary class="small">Numbers</summary>
          <div class="table-box plot-numbers" role="region" aria-label={`${title}: numbers`} tabIndex={0}>
            <table class="table">
              <caption class="sr-only">{title}, the newest first</caption>
              <thead>
                <tr>
                  <th scope="col">Time</th>
                  {lines.map((line) => (
                    <th key={line.name} scope="col" class="number">
                      {line.name}
                    </th>
                  ))}
                </tr>
              </thead>
              <tbody>
                {rows.map(({ at, index }) => (
                  <tr key={at}>
                    <th scope="row">{moment(at * 1000)}</th>
                    {lines.map((line) => {
                      const value = line.values[index];
                      return (
                        <td key={line.name} class="number">
                          {value === null || value === undefined ? "–" : format(value)}
                        </td>
                      );
                    })}
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </details>
      )}
    </figure>
  );
}

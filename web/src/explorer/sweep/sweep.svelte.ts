// A sweep that fills in: many changes of one run, one at a time, and what each does to a logit.

import { Tensor, type Label } from "../../tensor";
import type { Change, Fault, SweepSpec } from "../api";
import { faultOf, OF_A } from "../explorer.svelte";
import { isDropped, type Transport } from "../transport";

/** What a sweep is along, and what is measured before anything is changed. */
export interface Begun {
  sweep: SweepSpec["sweep"];
  answer: number;
  against: number | null;
  /** Of each row, the site or the attention that is changed. */
  rows: readonly string[];
  /** Of the longest row. */
  columns: number;
  /** In all rows. */
  cells: number;
  base: number;
  /** What the run that is copied from has. */
  donor?: number;
  python: string;
}

export interface Cell {
  i: number;
  j: number;
  /** A head, or a position and its token. */
  at: string;
  value: number;
}

export class Sweep {
  begun = $state.raw<Begun | null>(null);
  cells = $state.raw<readonly Cell[]>([]);
  spec = $state.raw<SweepSpec | null>(null);
  fault = $state.raw<Fault | null>(null);
  isRunning = $state(false);
  private leaving = new AbortController();

  constructor(private readonly api: Transport) {}

  /** Changes there are in all. */
  get all(): number {
    return this.begun?.cells ?? 0;
  }

  async start(spec: SweepSpec): Promise<void> {
    this.forget();
    const { signal } = (this.leaving = new AbortController());
    [this.spec, this.isRunning] = [spec, true];
    const found: Cell[] = [];
    let isDrawn = true;
    try {
      for await (const step of this.api.steps<Begun | Cell>("sweeps", spec, signal)) {
        if (signal.aborted) return;
        if ("rows" in step) this.begun = step;
        else found.push(step);
        // cells come faster than pictures are drawn
        if (isDrawn)
          requestAnimationFrame(() => {
            isDrawn = true;
            if (!signal.aborted) this.cells = [...found];
          });
        isDrawn = false;
      }
      this.cells = found;
    } catch (error) {
      if (!isDropped(error) && !signal.aborted) this.fault = faultOf(error);
    }
    if (!signal.aborted) this.isRunning = false;
  }

  /** What was computed stays. */
  stop = (): void => {
    this.leaving.abort();
    this.isRunning = false;
  };

  forget = (): void => {
    this.stop();
    [this.begun, this.cells, this.spec, this.fault] = [null, [], null, null];
  };

  /** The cells as a map of effects, the last layer at the top; what has not come yet has no number. */
  get map(): Tensor | null {
    if (!this.begun) return null;
    const { rows, columns, sweep, base } = this.begun;
    const values = new Float32Array(rows.length * columns).fill(NaN);
    const names: Label[] = Array.from({ length: columns }, (_, j) => (sweep === "patch_positions" ? `${j}:` : `H${j}`));
    for (const { i, j, at, value } of this.cells) {
      values[(rows.length - 1 - i) * columns + j] = value - base;
      if (sweep === "patch_positions") names[j] = at;
    }
    const axis = sweep === "patch_positions" ? "pos" : "head";
    return new Tensor({
      axes: ["site", axis],
      coords: { site: [...rows].reverse(), [axis]: names },
      shape: [rows.length, columns],
      values,
    });
  }

  /** The cell of a map's row and column, if it came. */
  at(row: number, column: number): Cell | undefined {
    return this.cells.find(({ i, j }) => i === this.begun!.rows.length - 1 - row && j === column);
  }
}

/** What the sweep did for a cell, as a change of a run: patches are copies of run A. */
export function changeOf({ at, i }: Cell, { sweep, rows }: Begun): Change {
  if (sweep === "ablate_heads") return { edit: "scale", site: `${at}.z`, value: 0 };
  const value = { run: OF_A };
  return sweep === "patch_heads"
    ? { edit: "set", site: `${at}.z`, value }
    : { edit: "set", site: rows[i], value, at: { pos: Number(at.split(":")[0]) } };
}

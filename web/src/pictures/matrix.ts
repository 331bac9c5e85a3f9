// A matrix of numbers as it came: half a million cells are drawn in a few milliseconds.

import type { Scale } from "../colours";
import type { Cell } from "../drawing/cursor";
import { drawPixels, strongest, type RowOf } from "../drawing/pixels";
import type { Cells } from "../pattern";
import { Tensor } from "../tensor";

export class Matrix implements Cells {
  readonly rows: number;
  readonly columns: number;
  readonly masks: boolean;

  /** The part of a tensor of two axes from `first` on; what has no number is masked. */
  constructor(
    private readonly tensor: Tensor,
    readonly scale: Scale,
    readonly first: Cell = [0, 0],
    size: Cell = [tensor.shape[0], tensor.shape[1]],
    masks = tensor.values.some(Number.isNaN),
  ) {
    [this.rows, this.columns] = size;
    this.masks = masks;
  }

  at(q: number, k: number): number | null {
    const value = this.tensor.values[(this.first[0] + q) * this.tensor.shape[1] + this.first[1] + k];
    return Number.isNaN(value) ? null : value;
  }

  window(first: Cell, size: Cell): Matrix {
    return new Matrix(this.tensor, this.scale, first, size, this.masks);
  }

  draw(canvas: HTMLCanvasElement, size: number): void {
    drawPixels(canvas, [this.rows, this.columns], this.rowOf, this.scale, size);
  }

  /** Of each square of `size` cells, row by row, the number of largest size; NaN where there is none. */
  strongest(size: number): Float32Array {
    const [down, across] = [this.rows, this.columns].map((n) => Math.ceil(n / size));
    return strongest([this.rows, this.columns], this.rowOf, across, down, size);
  }

  private rowOf: RowOf = (q) => {
    const { values, shape } = this.tensor;
    const start = (this.first[0] + q) * shape[1] + this.first[1];
    return values.subarray(start, start + this.columns);
  };
}

/** A tensor of two axes with its columns as rows. */
export function transposed(tensor: Tensor): Tensor {
  const [rows, columns] = tensor.shape;
  const values = new Float32Array(tensor.values.length);
  for (let r = 0; r < rows; r++)
    for (let c = 0; c < columns; c++) values[c * rows + r] = tensor.values[r * columns + c];
  return new Tensor({ ...tensor, axes: tensor.axes.toReversed(), shape: [columns, rows], values });
}

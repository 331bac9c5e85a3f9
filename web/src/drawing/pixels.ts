// Tables of numbers as pixels.

import { ramp, step, type Scale } from "../colours";

/** The numbers of a row; NaN where there is none. It may be the same array each time, filled anew. */
export type RowOf = (row: number) => ArrayLike<number>;

/** Of each cell, or square of `size` cells, the entry of largest size; NaN where no number is. */
export function strongest(
  [rows, columns]: readonly number[],
  rowOf: RowOf,
  width: number,
  height: number,
  size: number,
): Float32Array {
  const found = new Float32Array(width * height).fill(NaN);
  for (let row = 0; row < rows; row++) {
    const values = rowOf(row);
    for (let pixel = Math.floor(row / size) * width, column = 0; column < columns; pixel++) {
      let best = found[pixel];
      for (const end = Math.min(column + size, columns); column < end; column++) {
        const value = values[column];
        // no number is smaller than none
        if (Math.abs(value) > Math.abs(best) || Number.isNaN(best)) best = value;
      }
      found[pixel] = best;
    }
  }
  return found;
}

/**
 * Draw a table into a canvas: a pixel for each cell, or for each square of `size` cells, which then shows the entry of
 * largest size, so that none is lost by shrinking. Where no number is, the canvas stays empty.
 */
export function drawPixels(
  canvas: HTMLCanvasElement,
  shape: readonly number[],
  rowOf: RowOf,
  scale: Scale,
  size: number,
): void {
  const [height, width] = shape.map((n) => Math.ceil(n / size));
  Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d")!;
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  // little-endian, as every machine with a browser keeps them: opacity is the last byte
  const table = Uint32Array.from(
    ramp(scale.isSigned),
    ([red, green, blue]) => 0xff000000 + (blue << 16) + (green << 8) + red,
  );
  const values = strongest(shape, rowOf, width, height, size);
  for (let pixel = 0; pixel < values.length; pixel++)
    if (!Number.isNaN(values[pixel])) pixels[pixel] = table[step(values[pixel], scale)];
  context.putImageData(image, 0, 0);
}

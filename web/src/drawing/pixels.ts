// Tables of numbers as pixels.

import { ramp, step, type Scale } from "../colours";

/** The number in a cell; null where there is none. */
export type At = (row: number, column: number) => number | null;

/** Of each cell, or square of `size` cells, the entry of largest size; NaN where no number is. */
function strongest(
  [rows, columns]: readonly number[],
  at: At,
  width: number,
  height: number,
  size: number,
): Float32Array {
  const found = new Float32Array(width * height).fill(NaN);
  for (let row = 0; row < rows; row++) {
    const start = Math.floor(row / size) * width;
    for (let column = 0; column < columns; column++) {
      const value = at(row, column);
      const pixel = size === 1 ? start + column : start + Math.floor(column / size);
      // what is there already may be no number, which is smaller than none
      if (value !== null && !(Math.abs(found[pixel]) >= Math.abs(value))) found[pixel] = value;
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
  at: At,
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
  strongest(shape, at, width, height, size).forEach((value, pixel) => {
    if (!Number.isNaN(value)) pixels[pixel] = table[step(value, scale)];
  });
  context.putImageData(image, 0, 0);
}

// Tables of numbers as pixels.

import { colour, type Scale } from "../colours";

/** The number in a cell; null where there is none. */
export type At = (row: number, column: number) => number | null;

/** The entry of largest size in a square of cells. */
function strongest(at: At, [rows, columns]: readonly number[], r0: number, c0: number, size: number): number | null {
  if (size === 1) return at(r0, c0);
  let found: number | null = null;
  for (let r = r0; r < Math.min(r0 + size, rows); r++) {
    for (let c = c0; c < Math.min(c0 + size, columns); c++) {
      const value = at(r, c);
      if (value !== null && (found === null || Math.abs(value) > Math.abs(found))) found = value;
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
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const value = strongest(at, shape, y * size, x * size, size);
      if (value === null) continue;
      const [red, green, blue] = colour(value, scale);
      const pixel = 4 * (y * width + x);
      image.data[pixel] = red;
      image.data[pixel + 1] = green;
      image.data[pixel + 2] = blue;
      image.data[pixel + 3] = 255;
    }
  }
  context.putImageData(image, 0, 0);
}

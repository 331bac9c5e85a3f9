// A map of numbers in a canvas: a row of cells for every entry of one axis, a column for every entry of another.

import type { Cell, Lattice } from "../drawing/cursor";
import { colour, css, ink, type Scale } from "../colours";
import { TOKENS, labelText, placed } from "../labels";
import { beside } from "../numbers";
import type { Label, Tensor } from "../tensor";
import { paint } from "../theme.svelte";

const PALE = 0.02; // of its number, what the colour of a cell shows that is no surer than noise

/** What a map shows. */
export interface Shown {
  /** Of two axes. */
  tensor: Tensor;
  /** Standard errors of its numbers. */
  error: Tensor | null;
  scale: Scale;
}

/** Where cells and names stand. */
export interface Layout extends Lattice {
  /** Whether columns bear their whole names, and whether these are turned. */
  isUpright: boolean;
  isTurned: boolean;
}

/** Whether a mean is nearer to zero than two of its standard errors. */
export function isNoise({ tensor, error }: Pick<Shown, "tensor" | "error">, r: number, c: number): boolean {
  const spread = error?.at(r, c) ?? null;
  return spread !== null && Math.abs(tensor.at(r, c)!) < 2 * spread;
}

/** Where to begin: the largest entry, of the last query if rows are queries. */
export function largest(tensor: Tensor): Cell {
  const { values } = tensor;
  const columns = tensor.shape[1];
  const first = tensor.axes[0] === "query" ? values.length - columns : 0;
  let best = first;
  for (let i = first; i < values.length; i++)
    if (Math.abs(values[i]) > Math.abs(values[best]) || Number.isNaN(values[best])) best = i;
  return [Math.floor(best / columns), best % columns];
}

/** Draw into a canvas that has so much room, with a cursor on one cell. */
export function drawMap(
  canvas: HTMLCanvasElement,
  shown: Shown,
  [atRow, atColumn]: Cell,
  room: number,
  trained: number | null,
): Layout {
  const { tensor, scale } = shown;
  const [rowAxis, columnAxis] = tensor.axes;
  const [rows, columns] = [tensor.labels(rowAxis), tensor.labels(columnAxis)];
  const context = canvas.getContext("2d")!;
  const font = `12px ${paint("--mono")}`;
  context.font = font;
  const layout = layoutOf(context, tensor, room);
  const { left, top, width: w, height: h, isUpright, isTurned } = layout;
  const sharp = devicePixelRatio || 1;
  const [width, height] = [left + w * columns.length + 3, top + h * rows.length + 3];
  Object.assign(canvas, { width: Math.ceil(width * sharp), height: Math.ceil(height * sharp) });
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  context.scale(sharp, sharp);
  context.font = font;
  context.textBaseline = "middle";

  context.fillStyle = paint("--undefined");
  context.fillRect(left, top, w * columns.length, h * rows.length);
  const gap = Math.min(w, h) >= 9 ? 1 : 0;
  const hasNumbers = w >= 42 && h >= 16;
  context.textAlign = "center";
  for (let r = 0; r < rows.length; r++) {
    for (let c = 0; c < columns.length; c++) {
      const value = tensor.at(r, c);
      if (value === null) continue;
      const isPale = isNoise(shown, r, c);
      const fill = colour(isPale ? value * PALE : value, scale);
      context.fillStyle = css(fill);
      // without gaps, cells overlap by a fraction of a pixel: seams would show as a grid
      context.fillRect(left + c * w, top + r * h, w - gap + (gap ? 0 : 0.4), h - gap + (gap ? 0 : 0.4));
      if (!hasNumbers) continue;
      context.fillStyle = isPale ? paint("--soft") : ink(fill);
      context.fillText(beside(value, scale.limit, scale.isSigned), left + (c + 0.5) * w - 0.5, top + (r + 0.5) * h);
    }
  }

  // lines where the text goes beyond the rows that the model was trained on
  const beyond = (axis: string, labels: readonly Label[]) =>
    trained !== null && TOKENS.has(axis)
      ? labels.findIndex((label) => Number(typeof label === "number" ? label : (placed(label)?.[2] ?? -1)) >= trained)
      : -1;
  const [r, c] = [beyond(rowAxis, rows), beyond(columnAxis, columns)];
  context.fillStyle = paint("--trained");
  if (r > 0) context.fillRect(left, top + r * h - 1, w * columns.length, 1.5);
  if (c > 0) context.fillRect(left + c * w - 1, top, 1.5, h * rows.length);

  const tint = (isChosen: boolean) => {
    context.fillStyle = paint(isChosen ? "--pick" : "--soft");
  };
  const name = (axis: string, label: Label, isWhole: boolean) => {
    const match = TOKENS.has(axis) ? placed(label) : null;
    return isWhole || !match ? labelText(axis, label) : match[2];
  };
  const every = (size: number, least: number) => (size >= least ? 1 : 2 ** Math.ceil(Math.log2(least / size)));
  context.textAlign = "right";
  const rowStep = every(h, 11);
  for (let i = 0; i < rows.length; i += rowStep) {
    tint(i === atRow);
    context.fillText(name(rowAxis, rows[i], rowStep === 1), left - 6, top + (i + 0.5) * h, left - 8);
  }
  const columnStep = isUpright ? 1 : isTurned ? every(w, 11) : every(w, 30);
  for (let i = 0; i < columns.length; i += columnStep) {
    tint(i === atColumn);
    context.save();
    context.translate(left + (i + 0.5) * w, top - 5);
    if (isTurned) context.rotate(-Math.PI / 2);
    context.textAlign = isTurned ? "left" : "center";
    context.fillText(name(columnAxis, columns[i], isTurned || isUpright), 0, isTurned ? 0 : -4);
    context.restore();
  }

  context.strokeStyle = paint("--pick");
  context.lineWidth = 2;
  const grow = Math.max(0, 2 - Math.min(w, h) / 2);
  context.strokeRect(left + atColumn * w - grow - 0.5, top + atRow * h - grow - 0.5, w + 2 * grow, h + 2 * grow);
  return layout;
}

function layoutOf(context: CanvasRenderingContext2D, tensor: Tensor, room: number): Layout {
  const [rowAxis, columnAxis] = tensor.axes;
  const [rows, columns] = tensor.shape;
  const isOfTexts = TOKENS.has(rowAxis) && TOKENS.has(columnAxis);
  const wide = (axis: string) =>
    Math.max(...tensor.labels(axis).map((label) => context.measureText(labelText(axis, label)).width));
  const [rowRoom, columnRoom] = [wide(rowAxis), wide(columnAxis)];
  const few = rows <= 60;
  let left = few ? Math.min(132, rowRoom) + 10 : 34;
  const fit = (room - left - 4) / columns;
  let width = isOfTexts ? Math.min(Math.max(fit, 3), 22) : Math.min(Math.max(fit, 4), 72);
  let height = isOfTexts ? width : rows <= 12 ? 24 : rows <= 40 ? 19 : Math.max(3, Math.min(14, 620 / rows));
  if (isOfTexts && few && columns > 2 * rows) height = Math.max(height, 14);
  if (height >= 11) left = Math.min(132, rowRoom) + 10;
  const isUpright = columnRoom + 8 <= width;
  const isTurned = !isUpright && (width >= 11 || (!isOfTexts && !TOKENS.has(columnAxis)));
  const top = isTurned ? Math.min(118, columnRoom) + 8 : 20;
  if (width >= 8) width = Math.floor(width);
  if (height >= 8) height = Math.floor(height);
  return { left, top, width, height, isUpright, isTurned };
}

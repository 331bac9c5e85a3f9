// A cursor over a picture made of rows and columns.

/** A row and a column. */
export type Cell = readonly [row: number, column: number];

/** How far an arrow key moves it, with Shift ten at a time; null for other keys. */
export function arrowMove({ key, shiftKey }: KeyboardEvent): Cell | null {
  const far = shiftKey ? 10 : 1;
  const moves = { ArrowUp: [-far, 0], ArrowDown: [far, 0], ArrowLeft: [0, -far], ArrowRight: [0, far] } as const;
  return key in moves ? moves[key as keyof typeof moves] : null;
}

/** The cell that lies so far from another, or the last one that way. */
export const moved = ([row, column]: Cell, [down, right]: Cell, rows: number, columns: number): Cell => [
  Math.min(Math.max(row + down, 0), rows - 1),
  Math.min(Math.max(column + right, 0), columns - 1),
];

/** Where cells lie in a picture, in CSS pixels: the first one's corner, and the size of each. */
export interface Lattice {
  left: number;
  top: number;
  width: number;
  height: number;
}

/** The cell of a picture under the pointer; null beside them. */
export function cellUnder(
  event: MouseEvent,
  picture: Element,
  { left, top, width, height }: Lattice,
  rows: number,
  columns: number,
): Cell | null {
  const box = picture.getBoundingClientRect();
  const [row, column] = [(event.clientY - box.top - top) / height, (event.clientX - box.left - left) / width].map(
    Math.floor,
  );
  return row >= 0 && column >= 0 && row < rows && column < columns ? [row, column] : null;
}

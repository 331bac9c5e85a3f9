// A cursor over a picture made of rows and columns.

/** How far an arrow key moves it, with Shift ten at a time; null for other keys. */
export function arrowMove({ key, shiftKey }: KeyboardEvent): readonly [rows: number, columns: number] | null {
  const far = shiftKey ? 10 : 1;
  return ({ ArrowUp: [-far, 0], ArrowDown: [far, 0], ArrowLeft: [0, -far], ArrowRight: [0, far] } as const)[key] ?? null;
}

export const within = (x: number, n: number): number => Math.min(Math.max(x, 0), n - 1);

// Lines of graphs.

interface Point {
  x: number;
  y: number;
}

/** A line from a place to one above it, that leaves and arrives upright, bent over such a part of the way. */
export function bent(from: Point, to: Point, share: number): string {
  const bend = (from.y - to.y) * share;
  return `M${from.x} ${from.y}C${from.x} ${from.y - bend} ${to.x} ${to.y + bend} ${to.x} ${to.y}`;
}

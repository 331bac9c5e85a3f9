// The components of a logit in the order of the pass, the small ones of each layer together.

export interface Component {
  label: string;
  kind: string;
  layer: number | null;
  head: number | null;
}

export interface Share {
  /** One component, or those of a layer that are small beside others. */
  components: readonly number[];
  layer: number | null;
  value: number;
}

/** At most `most` components one by one, the largest, and the rest of each layer as one share: they add up to the same. */
export function shares(components: readonly Component[], values: ArrayLike<number>, most: number): Share[] {
  const order = [...components.keys()].sort((i, j) => Math.abs(values[j]) - Math.abs(values[i]));
  const alone = new Set(order.slice(0, most));
  const found: Share[] = [];
  const rests = new Map<number | null, { components: number[]; layer: number | null; value: number }>();
  components.forEach(({ layer }, i) => {
    if (alone.has(i)) return void found.push({ components: [i], layer, value: values[i] });
    const rest = rests.get(layer) ?? { components: [], layer, value: 0 };
    if (!rests.has(layer)) found.push(rest);
    rests.set(layer, rest);
    rest.components.push(i);
    rest.value += values[i];
  });
  return found;
}

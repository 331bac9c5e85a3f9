// What the cells of the map of heads may show: a picture of what a head looks at, or a number of it.

import { untrack } from "svelte";

import type { Scale } from "../../colours";
import { spoken } from "../../words";
import type { Fault } from "../api";
import { Asked, AskedInTurn } from "../asked.svelte";
import { faultOf, type Explorer } from "../explorer.svelte";
import { headsOf, ofShown, ofWeights } from "../looking";
import { roleName } from "../../explanation/explained";
import { aimOf, positionOf } from "../position/target";
import { isDropped } from "../transport";

/** What is known of each head, or of a sub-layer, by its label. */
export interface Scores {
  key: string;
  name: string;
  /** The name without that of its group, where it stands under it. */
  short: string;
  group: string;
  /** In what: a share from 0 to 1, or logits. */
  unit: "share" | "logits";
  values: ReadonlyMap<string, number | null>;
  fault: Fault | null;
  isWaiting: boolean;
}

const ROLES = ["previous_token", "induction", "duplicate_token", "first_token", "current_token"];

const AT_ONCE = 2 ** 22; // pairs of positions of all heads that are drawn together: some tenths of a second

interface Swept {
  runs: readonly string[];
  answer: number | null;
  against: number | null;
  position: number;
}

interface Step {
  i?: number;
  at?: string;
  value?: number;
  base?: number;
}

export class Cells {
  private readonly roles: Asked;
  private readonly general: Asked;
  private readonly direct: Asked;
  readonly thumbs: AskedInTurn;
  private ablated = $state.raw<ReadonlyMap<string, number>>(new Map());
  private ablation = $state.raw<{ fault: Fault | null; isWaiting: boolean }>({ fault: null, isWaiting: false });

  constructor(private readonly explorer: Explorer) {
    const api = explorer.api;
    const shows = (prefix: string) => this.isFinder || this.chosen.startsWith(prefix);
    this.roles = new Asked(api, () => (shows("text ") ? ofShown(explorer, "roles") : null));
    this.general = new Asked(api, () => (shows("general ") ? ofWeights(explorer, "scores") : null));
    this.direct = new Asked(api, () =>
      shows("direct") ? ofShown(explorer, "attribution", { view: aimOf(explorer) }) : null,
    );
    this.thumbs = new AskedInTurn(api, () => {
      if (this.chosen !== "pattern" || this.isFinder) return [];
      const heads = headsOf(explorer.model);
      const isSigned =
        explorer.show === "difference" || [...heads.values()].some((head) => head.mixer.pattern === "signed");
      const view = { size: heads.size > 400 ? 48 : 96, encoding: isSigned ? "signed8" : "sqrt8" } as const;
      return this.portions().map((layers) => ofShown(explorer, "thumbs", { view: { ...view, layers } }));
    });
    // many passes: only once it is asked for by name
    const wanted = $derived((this.isFinder ? explorer.tabs.sort : this.chosen) === "ablation");
    const sweeps = $derived(
      JSON.stringify({
        ...aimOf(explorer),
        runs: explorer.show === "difference" ? [explorer.shown.id, explorer.a.id] : [explorer.shown.id],
      }),
    );
    $effect(() => {
      if (!wanted) return;
      const { runs, ...aim } = JSON.parse(sweeps) as Swept;
      const leaving = new AbortController();
      untrack(() => void this.ablate(runs, aim, leaving));
      return () => leaving.abort();
    });
  }

  get chosen(): string {
    return this.explorer.tabs.cells ?? "pattern";
  }

  get isFinder(): boolean {
    return this.explorer.tabs.model === "finder";
  }

  /** Whose answer is asked about. */
  get position(): number {
    return positionOf(this.explorer);
  }

  /** First and last layer of what is drawn at once: as many layers as are not waited for. */
  private portions(): (readonly [number, number])[] {
    const pairs = new Map<number, number>();
    const { tokens, source_tokens } = this.explorer.shown;
    const longest = Math.max(tokens.length, source_tokens.length);
    for (const { layer } of headsOf(this.explorer.model).values())
      pairs.set(layer.index, (pairs.get(layer.index) ?? 0) + longest ** 2);
    const found: [number, number][] = [];
    let drawn = Infinity;
    for (const layer of [...pairs.keys()].sort((one, other) => one - other)) {
      drawn += pairs.get(layer)!;
      if (drawn <= AT_ONCE) found.at(-1)![1] = layer;
      else {
        found.push([layer, layer]);
        drawn = pairs.get(layer)!;
      }
    }
    return found;
  }

  private async ablate(runs: readonly string[], aim: Omit<Swept, "runs">, leaving: AbortController): Promise<void> {
    this.ablated = new Map();
    this.ablation = { fault: null, isWaiting: true };
    try {
      for (const [n, run] of runs.entries()) {
        let base = 0;
        const found = new Map(this.ablated);
        for await (const step of this.explorer.api.steps<Step>(
          "sweeps",
          { run, sweep: "ablate_heads", ...aim },
          leaving.signal,
        )) {
          if (step.base !== undefined) base = step.base;
          if (step.at === undefined) continue;
          const effect = step.value! - base;
          found.set(step.at, n ? (found.get(step.at) ?? NaN) - effect : effect);
          this.ablated = new Map(found);
        }
      }
      this.ablation = { fault: null, isWaiting: false };
    } catch (error) {
      if (!isDropped(error) && !leaving.signal.aborted) this.ablation = { fault: faultOf(error), isWaiting: false };
    }
  }

  /** Everything there is to show as a number, whether it was asked for yet or not. */
  get all(): readonly Scores[] {
    const ofRoles = (asked: Asked, prefix: string, group: string, name: (role: string) => string): Scores[] => {
      const scores = asked.answer?.arrays.scores;
      const roles = (scores?.labels("role") as string[] | undefined) ?? ROLES;
      return roles.map((role, r) => ({
        key: `${prefix} ${role}`,
        name: name(roleName(role)),
        short: roleName(role),
        group,
        unit: "share",
        values: new Map(scores?.labels("head").map((label, h) => [String(label), scores.at(h, r)])),
        fault: asked.fault,
        isWaiting: asked.isWaiting,
      }));
    };
    const parts = this.direct.answer?.arrays.contributions;
    return [
      {
        key: "direct",
        name: spoken("direct effect on the logit"),
        short: spoken("direct effect"),
        group: spoken("on the logit"),
        unit: "logits",
        fault: this.direct.fault,
        isWaiting: this.direct.isWaiting,
        values: new Map(parts?.labels("component").map((label, i) => [String(label), parts.at(i)])),
      },
      {
        key: "ablation",
        name: spoken("effect of setting it to zero"),
        short: spoken("set to zero"),
        group: spoken("on the logit"),
        unit: "logits",
        values: this.ablated,
        ...this.ablation,
      },
      ...ofRoles(this.roles, "text", spoken("on this text"), (role) => spoken("{role}, on this text", { role })),
      ...ofRoles(this.general, "general", spoken("on random tokens, repeated"), (role) =>
        spoken("{role}, in general", { role }),
      ),
    ];
  }

  get scores(): Scores | null {
    return this.all.find((scores) => scores.key === this.chosen) ?? null;
  }
}

/** The colours of scores: shares from 0 to 1, differences and logits from minus to plus the largest. */
export function scaleOf({ unit, values }: Scores, isDifference: boolean): Scale {
  if (unit === "share" && !isDifference) return { limit: 1, isSigned: false };
  return { limit: Math.max(1e-9, ...[...values.values()].map((value) => Math.abs(value ?? 0))), isSigned: true };
}

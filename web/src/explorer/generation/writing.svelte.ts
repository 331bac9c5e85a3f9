// A text that goes on, token by token: the server writes ahead, and each token is shown when it is asked for.

import type { Fault, GenerateSpec } from "../api";
import { faultOf } from "../explorer.svelte";
import { isDropped, type Transport } from "../transport";
import type { Drawn, Opening } from "./drawing";

export class Writing {
  opening = $state.raw<Opening | null>(null);
  steps = $state.raw<readonly Drawn[]>([]);
  fault = $state.raw<Fault | null>(null);
  isStreaming = $state(false);
  isWaiting = $state(false);
  /** Whether nothing follows: the text ended, or is as long as was asked for. */
  isOver = $state(false);
  private leaving = new AbortController();
  private coming: AsyncGenerator<Opening | Drawn> | null = null;

  constructor(private readonly api: Transport) {}

  /** One more token. */
  async next(spec: GenerateSpec): Promise<void> {
    if (this.isOver || this.isWaiting) return;
    const { signal } = this.leaving;
    this.isWaiting = true;
    this.coming ??= this.api.steps<Opening | Drawn>("generate", spec, signal);
    try {
      let step = await this.coming.next();
      if (!signal.aborted && step.value && !("token" in step.value)) {
        this.opening = step.value;
        step = await this.coming.next();
      }
      if (signal.aborted) return;
      if (step.done) this.isOver = true;
      else this.steps = [...this.steps, step.value as Drawn];
    } catch (error) {
      if (!isDropped(error) && !signal.aborted) [this.fault, this.isOver] = [faultOf(error), true];
    } finally {
      if (!signal.aborted) this.isWaiting = false;
    }
  }

  /** All that comes. */
  async stream(spec: GenerateSpec): Promise<void> {
    this.isStreaming = true;
    while (this.isStreaming && !this.isOver) await this.next(spec);
    this.isStreaming = false;
  }

  /** Show no more; what was written stays, and may go on. */
  stop = (): void => {
    this.isStreaming = false;
  };

  /** Begin anew; the server stops too. */
  leave = (): void => {
    this.leaving.abort();
    [this.leaving, this.coming] = [new AbortController(), null];
    [this.opening, this.steps, this.fault] = [null, [], null];
    this.isStreaming = this.isWaiting = this.isOver = false;
  };
}

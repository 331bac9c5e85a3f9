// A question whose answer follows what it depends on: asked again when that changes, the latest alone being waited for.

import type { Fault } from "./api";
import { isDropped, Refusal, UNREACHABLE, type Answer, type Question, type Transport } from "./transport";

let lanes = 0;
const AGAIN = 1000; // milliseconds until a server that does not answer is asked again
const IDLE = 200; // milliseconds without a new question, after which those to come are asked

export class Asked {
  /** The latest answer, which stays while the next is waited for. */
  answer = $state.raw<Answer | null>(null);
  /** Why there is none. */
  fault = $state.raw<Fault | null>(null);
  isWaiting = $state(false);
  /** The question that was answered last. */
  question = $state.raw<Question | null>(null);

  /** Asks while the component it is made in lives. `make` gives null while there is nothing to ask. */
  constructor(api: Transport, make: () => Question | null) {
    const lane = `asked-${(lanes += 1)}`;
    const key = $derived(JSON.stringify(make()));
    $effect(() => {
      const question = JSON.parse(key) as Question | null;
      this.isWaiting = question !== null;
      if (!question) {
        this.answer = this.fault = this.question = null;
        return;
      }
      const leaving = new AbortController();
      const settled = (answer: Answer | null, fault: Fault | null) => {
        if (leaving.signal.aborted) return;
        if (fault?.code === UNREACHABLE) {
          this.fault = fault;
          setTimeout(ask, AGAIN);
          return;
        }
        [this.answer, this.fault, this.question, this.isWaiting] = [answer, fault, question, false];
      };
      const ask = () => {
        if (leaving.signal.aborted) return;
        api.ask(question, { lane, signal: leaving.signal }).then(
          (answer) => settled(answer, null),
          (error: unknown) => {
            if (!isDropped(error))
              settled(
                null,
                error instanceof Refusal ? error.fault : { code: "Unexpected", message: String(error), hint: "" },
              );
          },
        );
      };
      ask();
      return () => leaving.abort();
    });
  }
}

/**
 * Ask what is likely to be asked next, one question after another, once those of now are answered and nobody has asked
 * anything else for a moment: the transport keeps the answers. What is refused is told to whoever asks for it.
 */
export function askAhead(api: Transport, make: () => readonly Question[]): void {
  const key = $derived(JSON.stringify(make()));
  $effect(() => {
    const questions = JSON.parse(key) as readonly Question[];
    const leaving = new AbortController();
    const later = setTimeout(async () => {
      for (const question of questions) {
        if (leaving.signal.aborted) return;
        await api.ask(question, { lane: "ahead", signal: leaving.signal }).catch(() => null);
      }
    }, IDLE);
    return () => {
      clearTimeout(later);
      leaving.abort();
    };
  });
}
